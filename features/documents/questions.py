"""The request lines of each stage after the first, built from the results of earlier stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from features.documents.collections.snapshot import custom_id
from features.documents.extraction.course.job import ExtractJob
from features.documents.extraction.course.line_results import LineResult
from features.documents.extraction.documents.document import Document
from features.documents.extraction.passes.prompts import Request
from features.documents.progress import DocumentProgress
from jobs.errors import InputError, NotFoundError
from jobs.lines.document_bodies import GROUND_ENDPOINT, PREPARE_MODEL
from jobs.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundingKeys:
    """Objects that every line of a grounding stage names."""

    plan: str
    found: str | None
    """Passages found for the questions; None if documents were asked."""


def first_questions(
    documents: Iterable[DocumentProgress], job: ExtractJob, storage: Storage, *, max_line_bytes: int
) -> Iterator[bytes]:
    """Yield the lines that ask every document that was read for every group of fields."""
    for one in documents:
        if one.read is None or one.read.error is not None:
            continue
        # A character takes at least one byte, so a longer text shown whole cannot fit a line.
        if job.window is None and one.read.body["num_characters"] > max_line_bytes:
            continue
        document = _document(storage, str(one.read.body["object_key"]))
        if document is None:
            continue
        showing = job.showing(document)
        texts = [job.excerpt(group, showing).layout.text for group in range(len(job.groups))]
        lines = list(of_document(job, one.number, texts))
        if all(len(line) <= max_line_bytes for line in lines):
            yield from lines


def of_document(job: ExtractJob, number: int, texts: Sequence[str]) -> Iterator[bytes]:
    """Yield the first questions for a document; `texts` are the texts of its excerpts, one for each group.

    A group's second reading follows directly, so that their common prefix is in the prefix cache.
    """
    for group, text in enumerate(texts):
        yield job.line(number, group, job.first_request(group, text)).rstrip(b"\n")
        second = job.second_request(group, text) if job.passes.second_reading else None
        if second is not None:
            yield job.line(number, group, second, is_second_reading=True).rstrip(b"\n")


def again_questions(documents: Iterable[DocumentProgress], job: ExtractJob) -> Iterator[bytes]:
    """Yield the lines of the next round of further questions."""
    return (_question(one, job, question) for one in documents for question in one.doubts)


def covered_questions(documents: Iterable[DocumentProgress], job: ExtractJob) -> Iterator[bytes]:
    """Yield the lines that ask with the found values covered."""
    return (_question(one, job, question) for one in documents for question in one.covered_questions)


def _question(one: DocumentProgress, job: ExtractJob, question: Mapping[str, Any]) -> bytes:
    request = Request(messages=tuple(question["messages"]), response_format=question["response_format"])
    return job.line(one.number, question["group"], request).rstrip(b"\n")


def groundings(documents: Iterable[DocumentProgress], keys: GroundingKeys) -> Iterator[bytes]:
    """Yield the lines that ground first answers in their documents."""
    return (_grounding(one, keys) for one in documents if one.problem() is None)


def again_groundings(documents: Iterable[DocumentProgress], keys: GroundingKeys) -> Iterator[bytes]:
    """Yield the lines that ground all answers of documents that were due to be asked in the last round.

    Includes documents for which the round had no room: their records note it, and later stages still ask them.
    """
    return (_grounding(one, keys) for one in documents if one.again and (one.again[-1] or one.doubts))


def covered_groundings(documents: Iterable[DocumentProgress], keys: GroundingKeys) -> Iterator[bytes]:
    """Yield the lines that ground all answers of documents that were asked with values covered."""
    return (_grounding(one, keys) for one in documents if one.covered)


def _grounding(one: DocumentProgress, keys: GroundingKeys) -> bytes:
    assert one.read is not None, "it was read"
    if one.document.is_index and keys.found is None:
        raise InputError("the passages found for its questions were deleted; create the extraction again")
    source = {"found_key": keys.found} if one.document.is_index else {"object_key": one.read.body["object_key"]}
    by_group = {"second_readings": one.second_readings, "covered": one.covered}
    body = {
        "model": PREPARE_MODEL,
        **source,
        "plan_key": keys.plan,
        "name": one.document.name,
        "sha256": one.sha256,
        "first": [result.to_body() for result in one.first],
        "usage": one.usage,
    }
    if one.again:
        body["again"] = [_bodies(results) for results in one.again]
    body |= {name: _bodies(results) for name, results in by_group.items() if results}
    line = {"custom_id": custom_id(one.number), "method": "POST", "url": GROUND_ENDPOINT, "body": body}
    return orjson.dumps(line)


def _bodies(results: Mapping[int, LineResult] | Mapping[str, LineResult]) -> dict[str, Any]:
    return {str(key): result.to_body() for key, result in results.items()}


def _document(storage: Storage, object_key: str) -> Document | None:
    """Return a read document, or None if it was deleted meanwhile."""
    try:
        stored = b"".join(storage.iter_chunks(object_key))
    except NotFoundError:
        return None
    return Document.from_bytes(stored)
