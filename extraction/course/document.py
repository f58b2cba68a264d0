"""One document of an extraction, from its answers to what is asked again and to its record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from extraction.course.answers import LineResult
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

SecondReadings = Mapping[int, LineResult]
"""Second readings by the number of their group; one that failed tells nothing."""


def first_reading(
    job: ExtractJob, showing: Showing, first: Sequence[LineResult], second_readings: SecondReadings | None = None
) -> DocumentReading | Mapping[str, Any]:
    """Return what a document was answered the first time, a result for each group; or the error of one of them."""
    read: list[GroupReading] = []
    for number, (group, result) in enumerate(zip(job.groups, first, strict=True)):
        if result.error is not None:
            return result.error
        shown = job.excerpt(number, showing).layout
        read.append(_agreeing(_read(job, result, group, shown), number, second_readings or {}))
    return DocumentReading(schema=job.schema, first=tuple(read))


def whole_reading(
    job: ExtractJob,
    showing: Showing,
    first: Sequence[LineResult],
    again: Mapping[int, LineResult],
    second_readings: SecondReadings | None = None,
) -> DocumentReading | Mapping[str, Any]:
    """Return what a document was answered both times; or the error of one of the first answers.

    `again` are the second answers, by the number of their group. Where a second question failed, the first answer is
    all there is.
    """
    reading = first_reading(job, showing, first, second_readings)
    if not isinstance(reading, DocumentReading):
        return reading
    second = {
        group: _agreeing(
            _read(job, again[group], job.doubted(group, doubts), job.excerpt(group, showing).layout),
            group,
            second_readings or {},
        )
        for group, doubts in reading.doubts().items()
        if group in again and again[group].error is None
    }
    return replace(reading, again=second)


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
    *,
    name: str,
    sha256: str,
    first: Sequence[LineResult],
    again: Mapping[int, LineResult],
    usage: Mapping[str, int],
    second_readings: SecondReadings | None = None,
    covered: Mapping[int, LineResult] | None = None,
) -> dict[str, Any]:
    """Return the record of a document; `covered` are the answers to `covered_questions`, by their groups' numbers."""
    reading = whole_reading(job, showing, first, again, second_readings)
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
        covered=_behind_covers(job, showing, reading, covered) if covered else None,
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


def _agreeing(read: GroupReading, number: int, second_readings: SecondReadings) -> GroupReading:
    """Return a reading with what the second reading of its group says of it."""
    second = second_readings.get(number)
    if second is None or second.error is not None:
        return read
    values = read_second(second.text, read.shown.text)
    return replace(read, findings=tuple(with_agreements(read.findings, values, read.group)))


def _read(job: ExtractJob, result: LineResult, group: Group, shown: LayoutText) -> GroupReading:
    read = read_group(result.text, group, shown, quotes=job.quotes, content=result.logprobs)
    examples = choose_examples(shown.text, job.examples)
    return replace(read, findings=tuple(without_example_values(read.findings, examples, group)))
