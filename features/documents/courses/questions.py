"""The request lines about a document at each stage after the first, built from the results of earlier stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from features.documents.collections.snapshot import custom_id
from features.documents.extraction.course.job import ExtractJob
from features.documents.extraction.documents.document import Document
from features.documents.extraction.passes.prompts import Request
from features.documents.progress import DocumentProgress
from features.documents.stages import DocumentStage
from jobs.errors import InputError, NotFoundError
from jobs.lines.document_bodies import GROUND_ENDPOINT, PREPARE_MODEL
from jobs.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundingKeys:
    """Objects that every line of a grounding stage names."""

    plan: str
    found: str | None
    """Passages found for the questions; None if documents were asked."""


def first_questions(one: DocumentProgress, job: ExtractJob, storage: Storage, *, max_line_bytes: int) -> list[bytes]:
    """Return the lines that ask a document for every group of fields; none if it cannot be asked."""
    if one.read is None or one.read.error is not None:
        return []
    # A character takes at least one byte, so a longer text shown whole cannot fit a line.
    if job.window is None and one.read.body["num_characters"] > max_line_bytes:
        return []
    document = _document(storage, str(one.read.body["object_key"]))
    if document is None:
        return []
    showing = job.showing(document)
    texts = [job.excerpt(group, showing).layout.text for group in range(len(job.groups))]
    lines = list(of_document(job, one.number, texts))
    return lines if all(len(line) <= max_line_bytes for line in lines) else []


def of_document(job: ExtractJob, number: int, texts: Sequence[str]) -> Iterator[bytes]:
    """Yield the first questions for a document; `texts` are the texts of its excerpts, one for each group.

    A group's second reading follows directly, so that their common prefix is in the prefix cache.
    """
    for group, text in enumerate(texts):
        yield job.line(number, group, job.first_request(group, text)).rstrip(b"\n")
        second = job.second_request(group, text) if job.passes.second_reading else None
        if second is not None:
            yield job.line(number, group, second, is_second_reading=True).rstrip(b"\n")


def further_questions(one: DocumentProgress, job: ExtractJob, questions: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """Return the lines of questions that a grounding of the document has made."""
    return [_question(one, job, question) for question in questions]


def _question(one: DocumentProgress, job: ExtractJob, question: Mapping[str, Any]) -> bytes:
    request = Request(messages=tuple(question["messages"]), response_format=question["response_format"])
    return job.line(one.number, question["group"], request).rstrip(b"\n")


def grounding(one: DocumentProgress, keys: GroundingKeys) -> bytes:
    """Return the line that grounds all answers about a document in it; it says where they are."""
    assert one.read is not None, "it was read"
    if one.document.is_index and keys.found is None:
        raise InputError("the passages found for its questions were deleted; create the extraction again")
    source = {"found_key": keys.found} if one.document.is_index else {"object_key": one.read.body["object_key"]}
    body: dict[str, Any] = {
        "model": PREPARE_MODEL,
        **source,
        "plan_key": keys.plan,
        "name": one.document.name,
        "sha256": one.sha256,
        "number": one.number,
        "first": one.asked[DocumentStage.ASK][0],
    }
    if one.again:
        rounds = one.asked.get(DocumentStage.ASK_AGAIN, ())
        body["again"] = [*rounds, *[None] * (len(one.again) - len(rounds))]  # the last one may have no room
    if one.covered:
        (body["covered"],) = one.asked[DocumentStage.ASK_COVERED]
    line = {"custom_id": custom_id(one.number), "method": "POST", "url": GROUND_ENDPOINT, "body": body}
    return orjson.dumps(line)


def _document(storage: Storage, object_key: str) -> Document | None:
    """Return a read document, or None if it was deleted meanwhile."""
    try:
        stored = b"".join(storage.iter_chunks(object_key))
    except NotFoundError:
        return None
    return Document.from_bytes(stored)
