"""What is asked of a document again, and in which order."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from extraction.course import job
from extraction.course.answers import Answers, LineResult
from extraction.course.document import record_of, whole_reading
from extraction.documents.limits import Limits
from extraction.documents.parsing import parse
from extraction.fields.paths import spell
from extraction.passes.asking_again import CUT, MISSING
from extraction.passes.document_reading import DocumentReading
from extraction.passes.excerpts import Window

TEXT = {"type": "string"}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "object", "properties": {"x": TEXT, "y": TEXT, "z": TEXT}}, "b": TEXT},
}
JOB = job.plan(json.dumps(SCHEMA).encode(), quotes=False, params={}, max_fields=25)
DOCUMENT = parse(b"one two three four", "a.txt", Limits())
CUT_ANSWER = LineResult(text='{"a": {"x": "one", "y": "two two two two')


def test_the_field_in_which_an_answer_ran_on_is_asked_again_behind_the_others() -> None:
    reading = whole_reading(JOB, JOB.showing(DOCUMENT), Answers(first=[CUT_ANSWER]))
    assert isinstance(reading, DocumentReading)
    doubts = reading.doubts()[0]
    assert doubts == {("a", "y"): CUT, ("a", "z"): MISSING, ("b",): MISSING}
    assert [leaf.path for leaf in JOB.doubted(0, doubts).leaves] == [("b",), ("a", "z"), ("a", "y")]
    request = JOB.again_request(0, "one two", doubts)
    properties = request.response_format["json_schema"]["schema"]["properties"]
    assert (list(properties), list(properties["a"]["properties"])) == (["b", "a"], ["z", "y"])


def test_a_second_answer_that_runs_on_there_too_has_all_the_others() -> None:
    again = LineResult(text='{"b": "four", "a": {"z": "three", "y": "two two two two')
    answers = Answers(first=[CUT_ANSWER], again={0: again})
    found: dict[str, Any] = record_of(JOB, JOB.showing(DOCUMENT), answers, name="a.txt", sha256="", usage={})
    assert found["fields"] == {"a": {"x": "one", "y": None, "z": "three"}, "b": "four"}
    assert [each["path"] for each in found["evidence"] if each["review"] and each["value"] is None] == ["a.y"]


def test_items_with_a_key_keep_what_was_not_asked_again_of_them() -> None:
    item = {"k": {"type": "string", "x-tokenmill": {"key": True}}, "p": TEXT, "q": TEXT}
    rows = {"type": "array", "items": {"type": "object", "properties": item}}
    schema = {"type": "object", "properties": {"rows": rows}}
    planned = job.plan(json.dumps(schema).encode(), quotes=False, params={}, max_fields=25)
    first = LineResult(text='{"rows": [{"k": "one", "p": "two", "q": "nowhere"}]}')
    again = LineResult(text='{"rows": [{"k": "one", "q": "three"}]}')
    answers = Answers(first=[first], again={0: again})
    found = record_of(planned, planned.showing(DOCUMENT), answers, name="a.txt", sha256="", usage={})
    assert found["fields"] == {"rows": [{"k": "one", "p": "two", "q": "three"}]}


REASONS = {("a", "x"): "short", ("a", "y"): "a reason that is long " * 3, ("b",): "one of middling length"}
TASK = "A first answer was doubtful{}. Look again."


@pytest.mark.parametrize(
    ("room", "told"),
    [
        (0, ""),
        (13, ""),
        (14, " (a.x, a.y, b)"),
        (21, " (a.x: short; a.y, b)"),
        (112, " (a.x: short; a.y; b: one of middling length)"),
        (113, f" (a.x: short; a.y: {'a reason that is long ' * 3}; b: one of middling length)"),
    ],
)
def test_a_question_that_asks_again_tells_as_many_reasons_as_there_is_room_for(room: int, told: str) -> None:
    asked = JOB.again_request(0, "one two", REASONS)
    longest = TASK.format(f" ({'; '.join(f'{spell(path)}: {reason}' for path, reason in REASONS.items())})")
    others = sum(len(message["content"]) + 16 for message in asked.messages) + 16 - len(longest)
    window = Window(max_tokens=others + len(TASK.format("")) + room, count=len)
    request = replace(JOB, params={}, window=window).again_request(0, "one two", REASONS)
    assert request.messages[-1]["content"] == asked.messages[-1]["content"].replace(longest, TASK.format(told))
    assert request.response_format == asked.response_format
