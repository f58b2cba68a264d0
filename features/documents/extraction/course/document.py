"""One document of an extraction: its combined answers, further questions, and its record."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import orjson

from features.documents.extraction.course.job import ExtractJob, answered_questions, question_keys
from features.documents.extraction.course.line_results import TOO_LONG_CODE, Answers, LineResult
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
"""Limit for a round's questions to one document, as JSON: each has the document's text, and there may be hundreds."""
NO_ROOM = "there was no room for another question"


def whole_reading(job: ExtractJob, showing: Showing, answers: Answers) -> DocumentReading | Mapping[str, Any]:
    """Return the combined answers of a document, or the error of one of the first answers.

    A first question that was too long is no error of the document: its group is asked again in parts.
    """
    read: list[GroupReading] = []
    for number, (group, result) in enumerate(zip(job.groups, answers.first, strict=True)):
        if result.error is not None and not _is_too_long(showing, result.error):
            return result.error
        shown = job.excerpt(number, showing).layout
        read.append(_agreeing(_read(job, showing, result, group, shown), number, answers))
    reading = DocumentReading(schema=job.schema, first=tuple(read), halvings=job.halvings)
    for results in answers.again:
        questions = answered_questions(reading.questions(), results.keys())
        read_again = list[tuple[Question, GroupReading]]()
        for key, question in questions.items():
            one = _read_again(job, showing, reading, question, results[key])
            read_again.append((question, _agreeing(one, question.group, answers)))
        reading = replace(
            reading, rounds=(*reading.rounds, (*read_again, *_without_line(job, reading, questions.values())))
        )
    return reading


def _without_line(
    job: ExtractJob, reading: DocumentReading, questions: Collection[Question]
) -> Iterator[tuple[Question, GroupReading]]:
    """Yield the questions of the next round that no line asked, with that as their problem."""
    paths = {(question.group, path) for question in questions for path in question.doubts}
    for question in reading.questions():
        if not paths.issuperset((question.group, path) for path in question.doubts):
            shown = reading.first[question.group].shown
            yield question, no_reading(job.asked_again(question), shown, NO_ROOM)


def again_requests(job: ExtractJob, showing: Showing, answers: Answers) -> dict[str, Request]:
    """Return the next round's questions to a document, by question key, as many as fit."""
    reading = whole_reading(job, showing, answers)
    if not isinstance(reading, DocumentReading):
        return {}
    requests = (
        (key, job.again_request(_shown_again(job, showing, reading, question).text, question))
        for key, question in question_keys(reading.questions()).items()
    )
    return dict(_with_room(requests))


def covered_requests(job: ExtractJob, showing: Showing, answers: Answers) -> dict[int, Request]:
    """Return the questions with every found value covered, by group number, as many as fit."""
    reading = whole_reading(job, showing, answers)
    if not isinstance(reading, DocumentReading):
        return {}
    return dict(_with_room(covered_questions(job, showing, reading)))


def _with_room(requests: Iterable[tuple[Key, Request]]) -> Iterator[tuple[Key, Request]]:
    """Yield the first of a document's questions whose total size fits a round."""
    room = MAX_ROUND_BYTES
    for key, request in requests:
        room -= len(orjson.dumps([request.messages, request.response_format]))
        if room < 0:
            return
        yield key, request


def covered_texts(job: ExtractJob, showing: Showing, reading: DocumentReading) -> list[LayoutText]:
    """Return the text of each group's prompt with every found value covered."""
    merged = reading.merged()
    return [cover(job.excerpt(group, showing).layout, merged) for group in range(len(job.groups))]


def covered_questions(job: ExtractJob, showing: Showing, reading: DocumentReading) -> Iterator[tuple[int, Request]]:
    """Yield the covered question of each group, by its number."""
    longest = max_characters(reading.merged())
    for group, shown in enumerate(covered_texts(job, showing, reading)):
        if reading.first[group].problem is None:  # otherwise this question would be too long as well
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
    """Return the record of a document with its answers so far; `usage` are their token counts."""
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
    """Return a note for a document that was shown in parts, where a null is less certain."""
    if not showing.can_be_cut or not (length := len(showing.whole.layout.text)):
        return []
    shares = [len(one.layout.text) / length for one in showing.excerpts.values() if one is not showing.whole]
    if not shares:
        return []
    shown_in = f"{len(shares)} of {len(showing.excerpts)} questions showed a part of it"
    return [f"it is longer than a question has room for: {shown_in}, {min(shares):.1%} of its text at least"]


def _failures(results: Mapping[int, LineResult], of: str) -> list[str]:
    """Return a note on failed optional questions: how many, and why."""
    errors = [result.error for result in results.values() if result.error is not None]
    if not errors:
        return []
    return [f"{of} failed in {len(errors)} of {len(results)} questions: {errors[0]['message']}"]


def _last_error(answers: Answers) -> Mapping[str, Any]:
    """Return the last error if no question was answered; after a too long first question, parts were asked."""
    line_results = [*answers.first, *(result for results in answers.again for result in results.values())]
    return next(result.error for result in reversed(line_results) if result.error is not None)


def _behind_covers(
    job: ExtractJob, showing: Showing, reading: DocumentReading, covered: Mapping[int, LineResult]
) -> dict[Place, CoveredReading]:
    merged, texts = reading.merged(), covered_texts(job, showing, reading)
    readings: dict[Place, CoveredReading] = {}
    for group, result in covered.items():
        if result.error is None:
            readings |= covered_readings(_read(job, showing, result, job.groups[group], texts[group]), merged)
    return readings


def _ranks(showing: Showing) -> Mapping[int, int]:
    """Return the best rank of each passage over all groups, by its start."""
    best: dict[int, int] = {}
    for excerpt in (*showing.excerpts.values(), *showing.parts.values()):
        for start, rank in excerpt.ranks.items():
            best[start] = min(rank, best.get(start, rank))
    return best


def _agreeing(read: GroupReading, number: int, answers: Answers) -> GroupReading:
    """Return a reading with the agreement of its group's second reading."""
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
    """Return the text of a further question: that of the group's first question or, if too long, its own."""
    first = reading.first[question.group]
    return first.shown if first.problem is None else job.part_excerpt(question, showing).layout


def _read(job: ExtractJob, showing: Showing, result: LineResult, group: Group, shown: LayoutText) -> GroupReading:
    """Read an answer; if there is none, all leaves count as left out."""
    if result.error is not None:
        problem = f"it could not be asked: {result.error['message']}"
        return no_reading(group, shown, TOO_LONG if _is_too_long(showing, result.error) else problem)
    read = read_group(result.text, group, shown, quotes=job.quotes, content=result.logprobs)
    examples = choose_examples(shown.text, job.examples)
    return replace(read, findings=tuple(with_example_reasons(read.findings, examples, group)))


def _is_too_long(showing: Showing, error: Mapping[str, Any]) -> bool:
    """Tell whether a smaller question may fit; it cannot if documents are always shown whole."""
    return showing.can_be_cut and error["code"] == TOO_LONG_CODE
