"""Child process that makes records from answers: they quote untrusted documents.

Served like the process that reads files.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain, islice, pairwise
from typing import Any

import orjson

from features.documents.extraction.course import answers as answers_in
from features.documents.extraction.course.corpus import FoundPassage, Gathered, gather
from features.documents.extraction.course.document import again_requests, covered_requests, record_of
from features.documents.extraction.course.job import ExtractJob, custom_id
from features.documents.extraction.course.line_results import Answers
from features.documents.extraction.course.stored_plan import StoredPlan
from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.limits import Limits, Progress
from features.documents.extraction.documents.process.child import serve
from features.documents.extraction.errors import DocumentCode, DocumentError, ExtractionError
from features.documents.extraction.passes.excerpts import Showing
from features.documents.extraction.passes.prompts import Request

MODULE = "features.documents.extraction.course.grounding_child"
_SIZES = struct.Struct("<QQQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLines:
    """The result lines of the questions about a document."""

    first: Sequence[bytes]
    again: Sequence[Sequence[bytes]] = ()
    """Of each round."""
    covered: Sequence[bytes] | None = None
    """None where none were asked so far."""

    def header(self) -> dict[str, Any]:
        """Return how many lines each part has."""
        covered = None if self.covered is None else len(self.covered)
        return {"first": len(self.first), "again": [len(lines) for lines in self.again], "covered": covered}

    def to_bytes(self) -> bytes:
        """Return all lines in their order."""
        return b"".join(line + b"\n" for line in (*self.first, *chain(*self.again), *(self.covered or ())))


def packed(request: Mapping[str, Any], *, plan: bytes, answers: AnswerLines, document: bytes) -> bytes:
    """Return the input of the process; `request` has the number and sha256 of the document."""
    header, lines = orjson.dumps({**request, "num_lines": answers.header()}), answers.to_bytes()
    return _SIZES.pack(len(header), len(plan), len(lines)) + header + plan + lines + document


def packed_found(
    request: Mapping[str, Any],
    *,
    plan: bytes,
    answers: AnswerLines,
    found: Mapping[str, Sequence[Mapping[str, Any]]],
    stored: Mapping[str, bytes],
) -> bytes:
    """Return the input for an index: the passages by the custom_id of their group, and their documents."""
    sizes = {document_id: len(content) for document_id, content in stored.items()}
    content = b"".join(stored.values())
    return packed({**request, "found": found, "sizes": sizes}, plan=plan, answers=answers, document=content)


def ground(content: bytes, name: str, limits: Limits, progress: Progress) -> bytes:
    """Return JSON with the `record` and the next questions.

    These are the `doubts` for the next round or, if there are none and the plan has that pass, questions with values
    `covered`. `group` of each is a key of `question_keys`, which names its line.
    """
    ends = [*accumulate(_SIZES.unpack_from(content), initial=_SIZES.size)]
    header, plan, lines = (content[start:end] for start, end in pairwise(ends))
    stored, request, job = content[ends[-1] :], orjson.loads(header), _job(plan)
    gathered = None if request.get("found") is None else _gathered(request, stored, num_groups=len(job.groups))
    showing = job.showing(Document.from_bytes(stored)) if gathered is None else gathered.showing()
    answers = _answers(request, lines.splitlines(), num_groups=len(job.groups))
    if not answers.first:
        message = f"some of the {len(job.groups)} groups of the plan have no answer: ask again"
        raise DocumentError(DocumentCode.UNKNOWN_VERSION, message)
    record = record_of(job, showing, answers, name=name, sha256=request["sha256"], usage=answers.usage)
    record = gathered.placed(record) if gathered else record
    are_covered = request["num_lines"]["covered"] is not None
    return orjson.dumps({"record": record} | _next(job, showing, answers, are_covered=are_covered))


@lru_cache(maxsize=1)  # consecutive documents are mostly those of one extraction
def _job(plan: bytes) -> ExtractJob:
    try:
        return StoredPlan.from_bytes(plan).job()
    except ExtractionError as error:
        raise DocumentError(DocumentCode.UNKNOWN_VERSION, str(error)) from None


def _gathered(request: Mapping[str, Any], stored: bytes, *, num_groups: int) -> Gathered:
    documents: dict[str, bytes] = {}
    start = 0
    for document_id, size in request["sizes"].items():
        documents[document_id] = stored[start : start + size]
        start += size
    of_groups = (request["found"].get(custom_id(0, group), ()) for group in range(num_groups))
    return gather([[FoundPassage(**each) for each in passages] for passages in of_groups], documents)


def _answers(request: Mapping[str, Any], lines: Sequence[bytes], *, num_groups: int) -> Answers:
    number, num_lines = request["number"], request["num_lines"]
    left = map(orjson.loads, lines)

    def taken(count: int) -> dict[str, Any]:
        return {line["custom_id"]: line for line in islice(left, count)}

    first = taken(num_lines["first"])
    again = [answers_in.of_round(taken(count), number) for count in num_lines["again"]]
    covered = answers_in.of_round(taken(num_lines["covered"] or 0), number)
    return Answers(
        first=answers_in.first(first, number, num_groups=num_groups),
        second_readings=answers_in.second_readings(first, number, num_groups=num_groups),
        again=again,
        covered={int(group): result for group, result in covered.items()},
    )


def _next(job: ExtractJob, showing: Showing, answers: Answers, *, are_covered: bool) -> dict[str, Any]:
    """Return the next questions; none after the covered ones."""
    doubts, covered = dict[str, Request](), dict[int, Request]()
    if job.passes.again and not are_covered:
        doubts = again_requests(job, showing, answers)
    if job.passes.cover and not are_covered and not doubts:
        covered = covered_requests(job, showing, answers)
    return {"doubts": _questions(doubts), "covered": _questions(covered)}


def _questions(requests: Mapping[int, Request] | Mapping[str, Request]) -> list[dict[str, Any]]:
    return [
        {"group": key, "messages": list(request.messages), "response_format": request.response_format}
        for key, request in requests.items()
    ]


if __name__ == "__main__":
    serve(ground, MODULE)
