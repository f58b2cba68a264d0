"""One document of an extraction, from its answers to what is asked again and to its record."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import orjson

from features.documents.extraction.course.answers import TOO_LONG_CODE, Answers, LineResult
from features.documents.extraction.course.job import ExtractJob, answered_questions, question_keys
from features.documents.extraction.documents.layout import LayoutText
from features.documents.extraction.fields.groups import Group
from features.documents.extraction.fields.paths import Place
from features.documents.extraction.passes.asking_again import TOO_LONG
from features.documents.extraction.passes.covering import CoveredReading, cover, covered_readings, max_characters
from features.documents.extraction.passes.document_reading import (
    DocumentReading,
    GroupReading,
    Question,
    no_reading,
    read_group,
)
from features.documents.extraction.passes.examples import with_example_reasons
from features.documents.extraction.passes.excerpts import Showing
from features.documents.extraction.passes.likeness import choose_examples
from features.documents.extraction.passes.prompts import Request
from features.documents.extraction.passes.second_reading import read_second, with_agreements
from features.documents.extraction.scoring.records import done_record, failed_record

Key = TypeVar("Key", int, str)

MAX_ROUND_BYTES = 16 * 2**20
"""Of what a round asks of one document, as JSON: each question has the document's text, and there may be hundreds."""
NO_ROOM = "there was no room for another question"


def whole_reading(job: ExtractJob, showing: Showing, answers: Answers) -> DocumentReading | Mapping[str, Any]:
    """Return what a document was answered so far; or the error of one of the first answers.

    A group whose first question was too long is no error of the document: it is asked again in parts.
    """
    read: list[GroupReading] = []
    for number, (group, result) in enumerate(zip(job.groups, answers.first, strict=True)):
        if result.error is not None and not _is_too_long(showing, result.error):
            return result.error
        shown = job.excerpt(number, showing).layout
        read.append(_agreeing(_read(job, showing, result, group, shown), number, answers))
    reading = DocumentReading(schema=job.schema, first=tuple(read), halvings=job.halvings)
    for results in answers.again:
        asked = answered_questions(reading.questions(), results.keys())
        read_again = list[tuple[Question, GroupReading]]()
        for key, question in asked.items():
            one = _read_again(job, showing, reading, question, results[key])
            read_again.append((question, _agreeing(one, question.group, answers)))
        reading = replace(
            reading, rounds=(*reading.rounds, (*read_again, *_without_line(job, reading, asked.values())))
        )
    return reading


def _without_line(
    job: ExtractJob, reading: DocumentReading, asked: Collection[Question]
) -> Iterator[tuple[Question, GroupReading]]:
    """Yield the questions of the next round that no line has put, with that for their problem."""
    paths = {(question.group, path) for question in asked for path in question.doubts}
    for question in reading.questions():
        if not paths.issuperset((question.group, path) for path in question.doubts):
            shown = reading.first[question.group].shown
            yield question, no_reading(job.asked_again(question), shown, NO_ROOM)


def again_requests(job: ExtractJob, showing: Showing, answers: Answers) -> dict[str, Request]:
    """Return what the next round asks of a document, by the keys of its questions: as many as have room in it."""
    reading = whole_reading(job, showing, answers)
    if not isinstance(reading, DocumentReading):
        return {}
    requests = (
        (key, job.again_request(_shown_again(job, showing, reading, question).text, question))
        for key, question in question_keys(reading.questions()).items()
    )
    return dict(_with_room(requests))


def covered_requests(job: ExtractJob, showing: Showing, answers: Answers) -> dict[int, Request]:
    """Return what asks once more with every value that was found covered, by the number of the group.

    As `again_requests` it asks as much as has room.
    """
    reading = whole_reading(job, showing, answers)
    if not isinstance(reading, DocumentReading):
        return {}
    return dict(_with_room(covered_questions(job, showing, reading)))


def _with_room(requests: Iterable[tuple[Key, Request]]) -> Iterator[tuple[Key, Request]]:
    """Yield the first of a document's questions that have room in a round together."""
    room = MAX_ROUND_BYTES
    for key, request in requests:
        room -= len(orjson.dumps([request.messages, request.response_format]))
        if room < 0:
            return
        yield key, request


def covered_texts(job: ExtractJob, showing: Showing, reading: DocumentReading) -> list[LayoutText]:
    """Return what the prompt of each group shows once every value that was found is covered."""
    merged = reading.merged()
    return [cover(job.excerpt(group, showing).layout, merged) for group in range(len(job.groups))]


def covered_questions(job: ExtractJob, showing: Showing, reading: DocumentReading) -> Iterator[tuple[int, Request]]:
    """Yield what asks for each group with all values covered, by its number."""
    longest = max_characters(reading.merged())
    for group, shown in enumerate(covered_texts(job, showing, reading)):
        if reading.first[group].problem is None:  # else this question would be too long, too
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
        return failed_record(job.told(reading), name=name, sha256=sha256, usage=usage, notes=showing.document.notes)
    if not reading.is_answered:
        error = job.told(_last_error(answers))
        return failed_record(error, name=name, sha256=sha256, usage=usage, notes=showing.document.notes)
    return done_record(
        job.schema,
        reading.merged(),
        showing.document,
        name=name,
        sha256=sha256,
        usage=usage,
        unanswered=reading.unanswered(),
        calibration=job.calibration,
        retrieval_ranks=_ranks(showing),
        covered=_behind_covers(job, showing, reading, answers.covered) if answers.covered else None,
        headings=showing.headings,
        notes=[
            *showing.document.notes,
            *_shown_in_parts(showing),
            *_failures(answers.second_readings, "a second reading"),
            *_failures(answers.covered, "what was asked with values covered"),
        ],
    )


def _shown_in_parts(showing: Showing) -> list[str]:
    """Return what is noted of a document that questions had no room for, of which a null says less than of others."""
    if not showing.can_be_cut or not (length := len(showing.whole.layout.text)):
        return []
    shares = [len(one.layout.text) / length for one in showing.excerpts.values() if one is not showing.whole]
    if not shares:
        return []
    shown_in = f"{len(shares)} of {len(showing.excerpts)} questions showed a part of it"
    return [f"it is longer than a question has room for: {shown_in}, {min(shares):.1%} of its text at least"]


def _failures(results: Mapping[int, LineResult], of: str) -> list[str]:
    """Return what is noted of questions that a record can do without: of how many there is no answer, and why."""
    errors = [result.error for result in results.values() if result.error is not None]
    if not errors:
        return []
    return [f"{of} failed in {len(errors)} of {len(results)} questions: {errors[0]['message']}"]


def _last_error(answers: Answers) -> Mapping[str, Any]:
    """Return what ended it where no question was answered: a first one that was too long was asked in parts."""
    asked = [*answers.first, *(result for results in answers.again for result in results.values())]
    return next(result.error for result in reversed(asked) if result.error is not None)


def _behind_covers(
    job: ExtractJob, showing: Showing, reading: DocumentReading, covered: Mapping[int, LineResult]
) -> dict[Place, CoveredReading]:
    merged, texts = reading.merged(), covered_texts(job, showing, reading)
    found: dict[Place, CoveredReading] = {}
    for group, result in covered.items():
        if result.error is None:
            found |= covered_readings(_read(job, showing, result, job.groups[group], texts[group]), merged)
    return found


def _ranks(showing: Showing) -> Mapping[int, int]:
    """Return the best rank that a passage has for any group, by where it begins."""
    best: dict[int, int] = {}
    for excerpt in (*showing.excerpts.values(), *showing.parts.values()):
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


def _read_again(
    job: ExtractJob, showing: Showing, reading: DocumentReading, question: Question, result: LineResult
) -> GroupReading:
    shown = _shown_again(job, showing, reading, question)
    return _read(job, showing, result, job.asked_again(question), shown)


def _shown_again(job: ExtractJob, showing: Showing, reading: DocumentReading, question: Question) -> LayoutText:
    """Return what a further question shows: as the first of its group, or of its own where that was too long."""
    first = reading.first[question.group]
    return first.shown if first.problem is None else job.part_excerpt(question, showing).layout


def _read(job: ExtractJob, showing: Showing, result: LineResult, group: Group, shown: LayoutText) -> GroupReading:
    """Read an answer; where there is none, all leaves are left out."""
    if result.error is not None:
        said = f"it could not be asked: {result.error['message']}"
        return no_reading(group, shown, TOO_LONG if _is_too_long(showing, result.error) else said)
    read = read_group(result.text, group, shown, quotes=job.quotes, content=result.logprobs)
    examples = choose_examples(shown.text, job.examples)
    return replace(read, findings=tuple(with_example_reasons(read.findings, examples, group)))


def _is_too_long(showing: Showing, error: Mapping[str, Any]) -> bool:
    """Tell whether a smaller question may fit: where a document is shown whole, whatever its length, none would."""
    return showing.can_be_cut and error["code"] == TOO_LONG_CODE
