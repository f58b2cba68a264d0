"""The process that makes records of answers: what a model said of strangers' documents is looked at in it alone.

Serves as the reader of files does. Knows no store and no batch.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from extraction.course.answers import LineResult
from extraction.course.corpus import FoundPassage, Gathered, gather
from extraction.course.document import first_reading, record_of
from extraction.course.job import ExtractJob
from extraction.course.stored_plan import StoredPlan
from extraction.documents.document import Document
from extraction.documents.limits import Limits, Progress
from extraction.documents.process.child import serve
from extraction.errors import DocumentCode, DocumentError, ExtractionError
from extraction.passes.document_reading import DocumentReading
from extraction.passes.excerpts import Showing

MODULE = "extraction.course.grounding_child"
_SIZES = struct.Struct("<QQ")


def packed(asked: Mapping[str, Any], *, plan: bytes, document: bytes) -> bytes:
    """Return what the process is sent; `asked` has the fields of a line's body that it needs."""
    said = orjson.dumps(asked)
    return _SIZES.pack(len(said), len(plan)) + said + plan + document


def packed_found(
    asked: Mapping[str, Any], *, plan: bytes, found: Sequence[Sequence[Mapping[str, Any]]], stored: Mapping[str, bytes]
) -> bytes:
    """Return what the process is sent of what an index was asked: passages of each group, and their documents."""
    sizes = {document_id: len(content) for document_id, content in stored.items()}
    return packed({**asked, "found": found, "sizes": sizes}, plan=plan, document=b"".join(stored.values()))


def ground(content: bytes, name: str, limits: Limits, progress: Progress) -> bytes:
    """Return JSON of the `record`, and of the `doubts` that are to be asked again where nothing was so far."""
    num_said, num_plan = _SIZES.unpack_from(content)
    starts = [_SIZES.size, _SIZES.size + num_said, _SIZES.size + num_said + num_plan]
    asked = orjson.loads(content[starts[0] : starts[1]])
    try:
        job = StoredPlan.from_bytes(content[starts[1] : starts[2]]).job()
    except ExtractionError as error:
        raise DocumentError(DocumentCode.UNKNOWN_VERSION, str(error)) from None
    gathered = None if asked.get("found") is None else _gathered(asked, content[starts[2] :])
    showing = job.showing(Document.from_bytes(content[starts[2] :])) if gathered is None else gathered.showing()
    first = [LineResult.from_body(answer) for answer in asked["first"]]
    if len(first) != len(job.groups):
        message = f"there are answers for {len(first)} groups, and the plan asks for {len(job.groups)}: ask again"
        raise DocumentError(DocumentCode.UNKNOWN_VERSION, message)
    again = {int(group): LineResult.from_body(answer) for group, answer in (asked["again"] or {}).items()}
    record = record_of(job, showing, name=name, sha256=asked["sha256"], first=first, again=again, usage=asked["usage"])
    doubts = _doubts(job, showing, first) if asked["again"] is None else []
    return orjson.dumps({"record": gathered.placed(record) if gathered else record, "doubts": doubts})


def _gathered(asked: Mapping[str, Any], stored: bytes) -> Gathered:
    documents: dict[str, bytes] = {}
    start = 0
    for document_id, size in asked["sizes"].items():
        documents[document_id] = stored[start : start + size]
        start += size
    return gather([[FoundPassage(**each) for each in passages] for passages in asked["found"]], documents)


def _doubts(job: ExtractJob, showing: Showing, first: list[LineResult]) -> list[dict[str, Any]]:
    reading = first_reading(job, showing, first)
    if not isinstance(reading, DocumentReading):
        return []
    asked = {
        group: job.again_request(group, reading.first[group].shown.text, doubts)
        for group, doubts in reading.doubts().items()
    }
    return [
        {"group": group, "messages": list(request.messages), "response_format": request.response_format}
        for group, request in asked.items()
    ]


if __name__ == "__main__":
    serve(ground, MODULE)
