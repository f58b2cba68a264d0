"""Reads the answers about a document where they are: in the results of the batches that asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from sqlalchemy.orm import Session, sessionmaker

from features.documents.extraction.course.grounding_child import AnswerLines
from features.documents.extraction.course.job import custom_id
from jobs.chunks import result_ranges
from jobs.chunks.result_ranges import ResultRange
from jobs.database import transaction
from jobs.lines.document_bodies import AskedLines, GivenAnswers, GroundRequest


def answer_lines(sessions: sessionmaker[Session], request: GroundRequest, *, tenant_id: str) -> AnswerLines:
    """Return the result lines that a grounding line names; lines of another tenant's batches are as if not answered."""
    if isinstance(request.first, GivenAnswers):
        return _given(request.first, request.number)
    asked = [request.first, *request.again, request.covered]
    with transaction(sessions) as session:
        days = result_ranges.days_of(session, tenant_id, [each.batch_id for each in asked if each is not None])
        known = {place: each for place, each in enumerate(asked) if each is not None and each.batch_id in days}
        ranges = [_range(each, days) for each in known.values()]
        read = dict(zip(known, result_ranges.read(session, ranges), strict=True))
    first, *again, covered = (read.get(place, []) for place in range(len(asked)))
    return AnswerLines(first=first, again=again, covered=None if request.covered is None else covered)


def _range(asked: AskedLines, days: result_ranges.Days) -> ResultRange:
    return ResultRange(
        batch_id=asked.batch_id,
        day=days[asked.batch_id],
        first_line=asked.first_line,
        num_lines=asked.num_lines,
    )


def _given(answers: GivenAnswers, number: int) -> AnswerLines:
    """Return given answers as the result lines that they were."""
    first = {custom_id(number, group): answer for group, answer in enumerate(answers.first)}
    for group, answer in answers.second_readings.items():
        first[custom_id(number, group, is_second_reading=True)] = answer

    def of_questions(by_key: Mapping[str, Mapping[str, Any]]) -> list[bytes]:
        return [_line(custom_id(number, key), answer) for key, answer in by_key.items()]

    return AnswerLines(
        first=[_line(name, answer) for name, answer in first.items()],
        again=[of_questions(by_key) for by_key in answers.again],
        covered=None if answers.covered is None else of_questions(answers.covered),
    )


def _line(name: str, answer: Mapping[str, Any]) -> bytes:
    if "error" in answer:
        return orjson.dumps({"custom_id": name, "error": answer["error"]})
    choice = {"message": {"content": answer["text"]}, "logprobs": {"content": answer.get("logprobs")}}
    return orjson.dumps({"custom_id": name, "response": {"body": {"choices": [choice]}}})
