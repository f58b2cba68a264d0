"""Child process that makes records from answers: they quote untrusted documents.

Served like the process that reads files.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from features.documents.extraction.course.corpus import FoundPassage, Gathered, gather
from features.documents.extraction.course.document import again_requests, covered_requests, record_of
from features.documents.extraction.course.job import ExtractJob
from features.documents.extraction.course.line_results import Answers, LineResult
from features.documents.extraction.course.stored_plan import StoredPlan
from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.limits import Limits, Progress
from features.documents.extraction.documents.process.child import serve
from features.documents.extraction.errors import DocumentCode, DocumentError, ExtractionError
from features.documents.extraction.passes.excerpts import Showing
from features.documents.extraction.passes.prompts import Request

MODULE = "features.documents.extraction.course.grounding_child"
_SIZES = struct.Struct("<QQ")


def packed(request: Mapping[str, Any], *, plan: bytes, document: bytes) -> bytes:
    """Return the input of the process; `asked` has the needed fields of a line's body."""
    header = orjson.dumps(request)
    return _SIZES.pack(len(header), len(plan)) + header + plan + document


def packed_found(
    request: Mapping[str, Any],
    *,
    plan: bytes,
    found: Sequence[Sequence[Mapping[str, Any]]],
    stored: Mapping[str, bytes],
) -> bytes:
    """Return the input for an index: the passages of each group, and their documents."""
    sizes = {document_id: len(content) for document_id, content in stored.items()}
    return packed({**request, "found": found, "sizes": sizes}, plan=plan, document=b"".join(stored.values()))


def ground(content: bytes, name: str, limits: Limits, progress: Progress) -> bytes:
    """Return JSON with the `record` and the next questions.

    These are the `doubts` for the next round or, if there are none and the plan has that pass, questions with values
    `covered`. `group` of each is a key of `question_keys`, which names its line.
    """
    num_header, num_plan = _SIZES.unpack_from(content)
    starts = [_SIZES.size, _SIZES.size + num_header, _SIZES.size + num_header + num_plan]
    request = orjson.loads(content[starts[0] : starts[1]])
    try:
        job = StoredPlan.from_bytes(content[starts[1] : starts[2]]).job()
    except ExtractionError as error:
        raise DocumentError(DocumentCode.UNKNOWN_VERSION, str(error)) from None
    gathered = None if request.get("found") is None else _gathered(request, content[starts[2] :])
    showing = job.showing(Document.from_bytes(content[starts[2] :])) if gathered is None else gathered.showing()
    answers = _answers(request)
    num_answers = len(answers.first)
    if num_answers != len(job.groups):
        message = f"there are answers for {num_answers} groups, and the plan asks for {len(job.groups)}: ask again"
        raise DocumentError(DocumentCode.UNKNOWN_VERSION, message)
    record = record_of(job, showing, answers, name=name, sha256=request["sha256"], usage=request["usage"])
    record = gathered.placed(record) if gathered else record
    return orjson.dumps({"record": record} | _next(job, showing, answers, request))


def _gathered(request: Mapping[str, Any], stored: bytes) -> Gathered:
    documents: dict[str, bytes] = {}
    start = 0
    for document_id, size in request["sizes"].items():
        documents[document_id] = stored[start : start + size]
        start += size
    return gather([[FoundPassage(**each) for each in passages] for passages in request["found"]], documents)


def _answers(request: Mapping[str, Any]) -> Answers:
    by_group = {
        name: {int(group): LineResult.from_body(answer) for group, answer in (request[name] or {}).items()}
        for name in ("second_readings", "covered")
    }
    again = [
        {key: LineResult.from_body(answer) for key, answer in answers.items()} for answers in request["again"] or ()
    ]
    return Answers(first=[LineResult.from_body(answer) for answer in request["first"]], again=again, **by_group)


def _next(job: ExtractJob, showing: Showing, answers: Answers, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the next questions; none after the covered ones."""
    doubts, covered = dict[str, Request](), dict[int, Request]()
    if job.passes.again and request["covered"] is None:
        doubts = again_requests(job, showing, answers)
    if job.passes.cover and request["covered"] is None and not doubts:
        covered = covered_requests(job, showing, answers)
    return {"doubts": _questions(doubts), "covered": _questions(covered)}


def _questions(requests: Mapping[int, Request] | Mapping[str, Request]) -> list[dict[str, Any]]:
    return [
        {"group": key, "messages": list(request.messages), "response_format": request.response_format}
        for key, request in requests.items()
    ]


if __name__ == "__main__":
    serve(ground, MODULE)
