"""One document of an extraction, from its answers to what is asked again and to its record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from extraction.course.answers import Answers, LineResult
from extraction.course.job import ExtractJob
from extraction.documents.layout import LayoutText
from extraction.fields.groups import Group
from extraction.fields.paths import Place
from extraction.passes.covering import CoveredReading, cover, covered_readings, max_characters
from extraction.passes.document_reading import DocumentReading, GroupReading, read_group
from extraction.passes.examples import without_example_values
from extraction.passes.excerpts import Showing
from extraction.passes.likeness import choose_examples
from extraction.passes.prompts import Request
from extraction.passes.second_reading import read_second, with_agreements
from extraction.scoring.records import done_record, failed_record


def first_reading(job: ExtractJob, showing: Showing, answers: Answers) -> DocumentReading | Mapping[str, Any]:
    """Return what a document was answered the first time, with its second readings; or the error of a first answer."""
    read: list[GroupReading] = []
    for number, (group, result) in enumerate(zip(job.groups, answers.first, strict=True)):
        if result.error is not None:
            return result.error
        shown = job.excerpt(number, showing).layout
        read.append(_agreeing(_read(job, result, group, shown), number, answers))
    return DocumentReading(schema=job.schema, first=tuple(read))


def whole_reading(job: ExtractJob, showing: Showing, answers: Answers) -> DocumentReading | Mapping[str, Any]:
    """Return what a document was answered both times; or the error of one of the first answers."""
    reading = first_reading(job, showing, answers)
    if not isinstance(reading, DocumentReading):
        return reading
    second = {
        group: _agreeing(
            _read(job, answers.again[group], job.doubted(group, doubts), job.excerpt(group, showing).layout),
            group,
            answers,
        )
        for group, doubts in reading.doubts().items()
        if group in answers.again and answers.again[group].error is None
    }
    return replace(reading, again=second)


def again_requests(job: ExtractJob, showing: Showing, answers: Answers) -> dict[int, Request]:
    """Return what asks for doubtful leaves again, by the number of their group."""
    reading = first_reading(job, showing, answers)
    if not isinstance(reading, DocumentReading):
        return {}
    shown = {group: reading.first[group].shown.text for group in range(len(job.groups))}
    return {group: job.again_request(group, shown[group], doubts) for group, doubts in reading.doubts().items()}


def covered_requests(job: ExtractJob, showing: Showing, answers: Answers) -> dict[int, Request]:
    """Return what asks once more with every value that was found covered, by the number of the group."""
    reading = whole_reading(job, showing, answers)
    if not isinstance(reading, DocumentReading):
        return {}
    return dict(covered_questions(job, showing, reading))


def covered_texts(job: ExtractJob, showing: Showing, reading: DocumentReading) -> list[LayoutText]:
    """Return what the prompt of each group shows once every value that was found is covered."""
    merged = reading.merged()
    return [cover(job.excerpt(group, showing).layout, merged) for group in range(len(job.groups))]


def covered_questions(job: ExtractJob, showing: Showing, reading: DocumentReading) -> Iterator[tuple[int, Request]]:
    """Yield what asks for each group with all values covered, by its number."""
    longest = max_characters(reading.merged())
    for group, shown in enumerate(covered_texts(job, showing, reading)):
        yield group, job.covered_request(group, shown.text, max_characters=longest)


def record_of(
    job: ExtractJob,
    showing: Showing,
    answers: Answers,
    *,
    name: str,
    sha256: str,
    usage: Mapping[str, int],
) -> dict[str, Any]:
    """Return the record of a document, as far as it is answered; `usage` is what that took."""
    reading = whole_reading(job, showing, answers)
    if not isinstance(reading, DocumentReading):
        return failed_record(reading, name=name, sha256=sha256, usage=usage)
    return done_record(
        job.schema,
        reading.merged(),
        showing.document,
        name=name,
        sha256=sha256,
        usage=usage,
        calibration=job.calibration,
        retrieval_ranks=_ranks(showing),
        covered=_behind_covers(job, showing, reading, answers.covered) if answers.covered else None,
    )


def _behind_covers(
    job: ExtractJob, showing: Showing, reading: DocumentReading, covered: Mapping[int, LineResult]
) -> dict[Place, CoveredReading]:
    merged, texts = reading.merged(), covered_texts(job, showing, reading)
    found: dict[Place, CoveredReading] = {}
    for group, result in covered.items():
        if result.error is None:
            found |= covered_readings(_read(job, result, job.groups[group], texts[group]), merged)
    return found


def _ranks(showing: Showing) -> Mapping[int, int]:
    """Return the best rank that a passage has for any group, by where it begins."""
    best: dict[int, int] = {}
    for excerpt in showing.excerpts.values():
        for start, rank in excerpt.ranks.items():
            best[start] = min(rank, best.get(start, rank))
    return best


def _agreeing(read: GroupReading, number: int, answers: Answers) -> GroupReading:
    """Return a reading with what the second reading of its group says of it."""
    second = answers.second_readings.get(number)
    if second is None or second.error is not None:
        return read
    values = read_second(second.text, read.shown.text)
    return replace(read, findings=tuple(with_agreements(read.findings, values, read.group)))


def _read(job: ExtractJob, result: LineResult, group: Group, shown: LayoutText) -> GroupReading:
    read = read_group(result.text, group, shown, quotes=job.quotes, content=result.logprobs)
    examples = choose_examples(shown.text, job.examples)
    return replace(read, findings=tuple(without_example_values(read.findings, examples, group)))
