"""Tests of what is asked of a document again, and in which order."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jsonschema_rs
import orjson
import pytest

from features.documents.extraction.course import document, job
from features.documents.extraction.course.document import record_of, whole_reading
from features.documents.extraction.course.job import ExtractJob
from features.documents.extraction.course.line_results import Answers, LineResult
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.fields.paths import Path, spell
from features.documents.extraction.passes.asking_again import (
    CUT,
    MISSING,
    TOO_LONG,
    UNGROUNDED,
    asked_again,
    halves,
    parts,
)
from features.documents.extraction.passes.document_reading import DocumentReading, Question
from features.documents.extraction.passes.excerpts import Window
from features.documents.extraction.scoring.records import UNANSWERED, UNENDED
from tests.features.documents.extraction.course.asked import REFUSED, TEXT, WINDOW

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "object", "properties": {"x": TEXT, "y": TEXT, "z": TEXT}}, "b": TEXT},
}
JOB = replace(
    job.plan(json.dumps(SCHEMA).encode(), quotes=False, params={}, max_fields=25),
    window=WINDOW,
)
DOCUMENT = parse(b"one two three four", "a.txt", Limits())
EXPIRED = LineResult(error={"code": "batch_expired", "message": "the batch expired"})
CUT_ANSWER = LineResult(text='{"a": {"x": "one", "y": "two two two two')

KEY_FIELD = {"type": "string", "x-tokenmill": {"key": True}}
KEY = ("rows", "*", "k")
ROWS = [{"k": "one", "p": "two", "q": "two"}, {"k": "three", "p": "four", "q": "four"}]
ITEMS = {"type": "object", "properties": {"k": KEY_FIELD, "p": TEXT, "q": TEXT}}
KEYED_SCHEMA = {"type": "object", "properties": {"b": TEXT, "rows": {"type": "array", "items": ITEMS}}}
KEYED = job.plan(json.dumps(KEYED_SCHEMA).encode(), quotes=False, params={}, max_fields=25)


def rows_of(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "object", "properties": properties}}


def test_every_answer_has_an_end_though_its_texts_have_none() -> None:
    properties = {f"text{number}": TEXT for number in range(25)}
    long = job.plan(
        json.dumps({"type": "object", "properties": properties}).encode(), quotes=True, params={}, max_fields=25
    )
    assert (JOB.params["max_tokens"], long.params["max_tokens"] > 256) == (256, True)
    asked = JOB.first_request(0, "one two").response_format["json_schema"]["schema"]["properties"]
    assert "maxLength" not in json.dumps(asked), "a long text is an answer, too"


def test_the_field_in_which_an_answer_ran_on_is_asked_again_behind_the_others() -> None:
    doubts = {("a", "y"): CUT, ("a", "z"): MISSING, ("b",): MISSING}
    question = Question(group=0, doubts=doubts)
    assert [leaf.path for leaf in JOB.asked_again(question).leaves] == [("b",), ("a", "z"), ("a", "y")]
    request = JOB.again_request("one two", question)
    properties = request.response_format["json_schema"]["schema"]["properties"]
    assert (list(properties), list(properties["a"]["properties"])) == (["b", "a"], ["z", "y"])


def test_an_answer_that_was_cut_is_asked_again_in_halves_down_to_the_field_it_ran_on_in() -> None:
    assert asked_after([]) == {"0-0": {("b",): MISSING, ("a", "z"): MISSING}, "0-1": {("a", "y"): CUT}}
    rest, alone = LineResult(text='{"a": {"z": "three three'), LineResult(text='{"a": {"y": "two two two')
    assert asked_after([{"0-0": rest, "0-1": alone}]) == {"0-0": {("b",): MISSING}, "0-1": {("a", "z"): CUT}}
    third, fourth = LineResult(text='{"b": "four"}'), LineResult(text='{"a": {"z": "three"}}')
    rounds = [{"0-0": rest, "0-1": alone}, {"0-0": third, "0-1": fourth}]
    assert asked_after(rounds) == {}
    found = record_after([CUT_ANSWER], rounds)
    assert found["fields"] == {"a": {"x": "one", "y": None, "z": "three"}, "b": "four"}
    unsure = {each["path"]: each["reasons"] for each in found["evidence"] if each["review"]}
    assert unsure == {"a.y": [f"{UNANSWERED}: {CUT}"]}


def test_a_question_that_is_too_long_is_asked_in_halves_that_fit_more_of_the_document() -> None:
    assert asked_after([], first=[REFUSED]) == {
        "0-0": dict.fromkeys([("a", "x"), ("a", "y")], TOO_LONG),
        "0-1": dict.fromkeys([("a", "z"), ("b",)], TOO_LONG),
    }
    first_half = LineResult(text='{"a": {"x": "one", "y": "two"}}')
    assert list(asked_after([{"0-0": first_half, "0-1": REFUSED}], first=[REFUSED])) == ["0-0", "0-1"]
    rounds = [
        {"0-0": first_half, "0-1": REFUSED},
        {"0-0": LineResult(text='{"a": {"z": "three"}}'), "0-1": REFUSED},
    ]
    assert asked_after(rounds, first=[REFUSED]) == {}
    found = record_after([REFUSED], rounds)
    assert found["fields"] == {"a": {"x": "one", "y": "two", "z": "three"}, "b": None}
    assert {each["path"]: each["reasons"] for each in found["evidence"] if each["review"]} == {
        "b": [f"{UNANSWERED}: {TOO_LONG}"]
    }


@pytest.mark.parametrize("answer", [LineResult(text='{"b": "one"}'), EXPIRED], ids=["done", "failed"])
def test_a_record_says_what_its_reader_noted_of_the_document(answer: LineResult) -> None:
    noted = parse("Größe: one".encode("latin-1"), "a.txt", Limits())
    assert noted.notes == ("read as Windows-1252: it is not UTF-8",)
    found = record_of(JOB, JOB.showing(noted), Answers(first=[answer]), name="a.txt", sha256="", usage={})
    assert found["notes"] == list(noted.notes)


def test_a_record_says_of_how_much_of_a_long_document_it_was_made() -> None:
    long = JOB.showing(parse(b"one two three\n\n" * 3000, "a.txt", Limits()))
    answers = Answers(first=[LineResult(text='{"a": {"x": "one", "y": null, "z": null}, "b": null}')])
    (note,) = record_of(JOB, long, answers, name="a.txt", sha256="", usage={})["notes"]
    told = re.fullmatch(
        r"it is longer than a question has room for: 1 of 1 questions showed a part of it, (.*)% of its text at least",
        note,
    )
    assert told
    assert 10 < float(told[1]) < 17
    short = JOB.showing(DOCUMENT)
    assert record_of(JOB, short, answers, name="a.txt", sha256="", usage={})["notes"] == []


def test_a_record_says_which_of_its_passes_failed() -> None:
    answers = Answers(first=[LineResult(text='{"b": "one"}')], second_readings={0: EXPIRED}, covered={0: REFUSED})
    found = record_of(JOB, JOB.showing(DOCUMENT), answers, name="a.txt", sha256="", usage={})
    assert found["notes"] == [
        "a second reading failed in 1 of 1 questions: the batch expired",
        "what was asked with values covered failed in 1 of 1 questions: the prompt is too long",
    ]


@pytest.mark.parametrize(
    ("last", "code"), [(REFUSED, "context_length_exceeded"), (EXPIRED, "batch_expired")], ids=["refused", "expired"]
)
def test_a_document_without_any_answer_has_its_last_error(last: LineResult, code: str) -> None:
    assert record_after([REFUSED], [dict.fromkeys(["0-0", "0-1"], last)])["error"]["code"] == code


@pytest.mark.parametrize(
    ("properties", "params", "told", "untold"),
    [
        ({"b": TEXT, "rows": rows_of({"p": TEXT})}, {}, ["'rows'", "maxItems"], []),
        ({"rows": rows_of({"p": TEXT}) | {"maxItems": 5}}, {}, ["max_fields"], ["maxItems"]),
        ({"b": TEXT}, {}, ["max_fields"], ["maxItems"]),
        ({"rows": rows_of({"p": TEXT})}, {"max_tokens": 893}, [], ["maxItems", "max_fields"]),
    ],
    ids=["a list", "a short list", "no list", "given"],
)
def test_an_answer_without_room_says_what_its_bound_is_made_of(
    properties: dict[str, Any], params: dict[str, Any], told: list[str], untold: list[str]
) -> None:
    schema = json.dumps({"type": "object", "properties": properties}).encode()
    asking = job.plan(schema, quotes=False, params=params, max_fields=25)
    error = {"code": "context_length_exceeded", "message": "max_tokens is 893 and messages has 200 tokens"}
    refused = Answers(first=[LineResult(error=error)] * len(asking.groups))
    found = record_of(asking, asking.showing(DOCUMENT), refused, name="a.txt", sha256="", usage={})["error"]
    assert found["code"] == "context_length_exceeded"
    assert all(text in found["message"] for text in [*told, error["message"]])
    assert not any(text in found["message"] for text in untold)


def test_the_parts_of_a_large_question_have_the_size_of_a_leaf_after_few_rounds() -> None:
    names = [f"f{number}" for number in range(369)]
    schema = {"type": "object", "properties": dict.fromkeys(names, TEXT)}
    large = job.plan(json.dumps(schema).encode(), quotes=False, params={}, max_fields=len(names))
    cut, rounds = LineResult(text="{"), list[dict[str, LineResult]]()
    while asked := asked_after(rounds, first=[cut], of=large):
        rounds.append(dict.fromkeys(asked, cut))
    assert [len(answers) for answers in rounds] == [2, 4, 8, 16, 32, 64, 128, 256, 226]


def test_a_round_has_room_for_so_many_bytes_of_one_document_and_its_record_tells_what_was_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    showing, first = JOB.showing(DOCUMENT), Answers(first=[LineResult(text="no JSON")])
    whole = document.again_requests(JOB, showing, first)
    sizes = [len(orjson.dumps([each.messages, each.response_format])) for each in whole.values()]
    assert len(sizes) == 2
    monkeypatch.setattr(document, "MAX_ROUND_BYTES", sum(sizes) - 1)
    asked = document.again_requests(JOB, showing, first)
    assert asked == {"0-0": whole["0-0"]}
    assert len(document.covered_requests(JOB, showing, first)) == 1
    monkeypatch.setattr(document, "MAX_ROUND_BYTES", 100)
    assert document.covered_requests(JOB, showing, first) == {}
    rounds = [{"0-0": LineResult(text='{"a": {"x": "one", "y": "two"}}')}]
    assert asked_after(rounds, first=first.first) == {}
    found = record_after(first.first, rounds)
    assert found["fields"] == {"a": {"x": "one", "y": "two", "z": None}, "b": None}
    reasons = {each["path"]: each["reasons"] for each in found["evidence"] if each["review"]}
    assert reasons == {path: [f"{UNANSWERED}: {document.NO_ROOM}"] for path in ("a.z", "b")}


def test_items_with_a_key_are_asked_in_halves_that_it_joins_and_others_as_a_whole() -> None:
    keyed = {"k": {"type": "string", "x-tokenmill": {"key": True}}, "p": TEXT, "q": TEXT}
    schema = {"type": "object", "properties": {"rows": rows_of(keyed), "free": rows_of({"r": TEXT, "s": TEXT})}}
    (group,) = job.plan(json.dumps(schema).encode(), quotes=False, params={}, max_fields=25).groups
    doubts = dict.fromkeys([leaf.path for leaf in group.leaves], MISSING)
    assert [[".".join(path) for path in part] for part in parts(group, doubts)] == [
        *(["rows.*.p"], ["rows.*.q"]),
        ["free.*.r", "free.*.s"],
    ]
    asked = [[leaf.name for leaf in asked_again(group, half).leaves] for half in halves(group, doubts)]
    assert asked == [["k", "p", "q"], ["r", "s"]]


def test_items_keep_what_was_not_asked_again_of_them() -> None:
    keyed = {"k": {"type": "string", "x-tokenmill": {"key": True}}, "p": TEXT, "q": TEXT}
    schema = {"type": "object", "properties": {"rows": rows_of(keyed)}}
    planned = job.plan(json.dumps(schema).encode(), quotes=False, params={}, max_fields=25)
    first = LineResult(text='{"rows": [{"k": "one", "p": "two", "q": "nowhere"}]}')
    again = LineResult(text='{"rows": [{"k": "one", "q": "three"}]}')
    assert asked_after([], first=[first], of=planned) == {"0": {("rows", "*", "q"): UNGROUNDED}}
    found = record_after([first], [{"0": again}], of=planned)
    assert found["fields"] == {"rows": [{"k": "one", "p": "two", "q": "three"}]}


JUNK = [{"k": f"X-{number}", "p": "nowhere", "q": "nowhere"} for number in range(20)]


@pytest.mark.parametrize("said", [[*ROWS, *JUNK], [*ROWS, *ROWS, *ROWS]])
def test_a_list_with_a_key_that_ran_on_is_what_its_halves_say(said: list[dict[str, str]]) -> None:
    first = LineResult(text=json.dumps({"b": "four", "rows": said})[:-3])
    p_alone, q_alone = asked_after([], first=[first], of=KEYED).values()
    assert (set(p_alone), set(q_alone)) == ({KEY, ("rows", "*", "p")}, {KEY, ("rows", "*", "q")})
    found = record_after([first], [{"0-0": answer_of(ROWS, "kp"), "0-1": answer_of(ROWS, "kq")}], of=KEYED)
    assert found["fields"]["rows"] == ROWS
    assert not any(each["review"] for each in found["evidence"])


def test_an_item_with_a_wrong_key_gives_way_though_something_else_could_not_be_read() -> None:
    first = LineResult(text=json.dumps({"b": 5, "rows": [{**ROWS[0], "k": "nowhere"}, ROWS[1]]}))
    asked = asked_after([], first=[first], of=KEYED)
    assert [KEY in half for half in asked.values()] == [True, True]
    rows = {"0-0": LineResult(text=json.dumps({"b": "four", **only(ROWS, "kp")})), "0-1": answer_of(ROWS, "kq")}
    assert record_after([first], [rows], of=KEYED)["fields"] == {"b": "four", "rows": ROWS}


def test_items_that_are_said_again_keep_what_a_half_without_answer_was_asked_for() -> None:
    first = LineResult(text=json.dumps({"b": "four", "rows": [*ROWS, *JUNK]})[:-3])
    found = record_after([first], [{"0-0": answer_of(ROWS, "kp"), "0-1": EXPIRED}], of=KEYED)
    assert found["fields"]["rows"] == ROWS


def test_a_half_that_is_asked_in_halves_leaves_what_the_other_half_said() -> None:
    first = LineResult(text='{"rows": [')
    rounds = [{"0-0": answer_of(ROWS, "kp"), "0-1": LineResult(text='{"rows": [{"k": "one", "q": "two"}')}]
    rounds.append({"0-0": LineResult(text='{"b": "four"}'), "0-1": answer_of(ROWS[:1], "kq")})
    found = record_after([first], rounds, of=KEYED)
    assert [row["p"] for row in found["fields"]["rows"]] == ["two", "four"]


def test_a_key_of_items_with_objects_is_asked_in_smaller_questions_each_round() -> None:
    inner = {"type": "object", "properties": {"first": TEXT, "last": TEXT}}
    schema = {"type": "object", "properties": {"rows": rows_of({"k": KEY_FIELD, "name": inner})}}
    planned = job.plan(json.dumps(schema).encode(), quotes=False, params={}, max_fields=25)
    cut, rounds = LineResult(text="{"), list[dict[str, LineResult]]()
    while asked := asked_after(rounds, first=[cut], of=planned):
        rounds.append(dict.fromkeys(asked, cut))
    assert [len(answers) for answers in rounds] == [2]


def test_a_list_that_was_cut_each_time_keeps_its_items_and_they_are_looked_at() -> None:
    schema = {"type": "object", "properties": {"rows": rows_of({"r": TEXT})}}
    planned = job.plan(json.dumps(schema).encode(), quotes=False, params={}, max_fields=25)
    cut = LineResult(text='{"rows": [{"r": "one"}, {"r": "two')
    found = record_after([cut], [{"0": cut}], of=planned)
    assert found["fields"] == {"rows": [{"r": "one"}]}
    assert [each["reasons"] for each in found["evidence"] if each["review"]] == [[f"{UNENDED}: {CUT}"]]


NESTED_SCHEMA = {
    "type": "object",
    "properties": {
        "b": TEXT,
        "rows": rows_of({"r": TEXT, "s": TEXT, "parts": rows_of({"p": TEXT})}),
        "tags": {"type": "array", "items": TEXT},
    },
}
NESTED = job.plan(json.dumps(NESTED_SCHEMA).encode(), quotes=False, params={}, max_fields=25)


@pytest.mark.parametrize(
    ("said", "rows", "to_review"),
    [
        ('{"b": "one", "rows": [', [], {"rows": UNENDED, "tags": UNENDED}),
        ('{"b": "one", "rows": [], "tags": []}', [], {}),
        (
            '{"b": "one", "rows": [{"r": "two", "s": "thr',
            [{"r": "two", "s": None, "parts": []}],
            {"rows[0].r": UNENDED, "rows[0].s": UNANSWERED, "rows[0].parts": UNENDED, "tags": UNENDED},
        ),
        (
            '{"b": "one", "rows": [{"r": "two", "s": "three", "parts": []}], "tags": []}',
            [{"r": "two", "s": "three", "parts": []}],
            {},
        ),
    ],
    ids=["before its first item", "no items", "amid an item", "no items in an item"],
)
def test_a_list_that_was_cut_is_looked_at_whether_it_has_items_or_none(
    said: str, rows: list[dict[str, Any]], to_review: dict[str, str]
) -> None:
    found = record_after([LineResult(text=said)], [], of=NESTED)
    assert found["fields"] == {"b": "one", "rows": rows, "tags": []}
    jsonschema_rs.validator_for(NESTED.schema.output_schema()).validate(found["fields"])
    reasons = {each["path"]: each["reasons"] for each in found["evidence"] if each["review"]}
    assert {path: [reason.partition(": ")[0] for reason in told] for path, told in reasons.items()} == {
        path: [reason] for path, reason in to_review.items()
    }
    assert [each["value"] for each in found["evidence"] if each["path"] in ("rows", "tags")] == [
        [] for path in to_review if path in ("rows", "tags")
    ]


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
    question = Question(group=0, doubts=REASONS)
    asked = JOB.again_request("one two", question)
    longest = TASK.format(f" ({'; '.join(f'{spell(path)}: {reason}' for path, reason in REASONS.items())})")
    others = sum(len(message["content"]) + 16 for message in asked.messages) + 16 - len(longest)
    window = Window(max_tokens=others + len(TASK.format("")) + room, count=len)
    request = replace(JOB, params={}, window=window).again_request("one two", question)
    assert request.messages[-1]["content"] == asked.messages[-1]["content"].replace(longest, TASK.format(told))
    assert request.response_format == asked.response_format


def only(rows: Sequence[dict[str, str]], names: str) -> dict[str, Any]:
    return {"rows": [{name: row[name] for name in names} for row in rows]}


def answer_of(rows: Sequence[dict[str, str]], names: str) -> LineResult:
    return LineResult(text=json.dumps(only(rows, names)))


def asked_after(
    rounds: list[dict[str, LineResult]], *, first: Sequence[LineResult] = (CUT_ANSWER,), of: ExtractJob = JOB
) -> dict[str, dict[Path, str]]:
    """Return the doubts of the next questions by their keys."""
    reading = whole_reading(of, of.showing(DOCUMENT), Answers(first=first, again=rounds))
    assert isinstance(reading, DocumentReading)
    return {key: dict(each.doubts) for key, each in job.question_keys(reading.questions()).items()}


def record_after(
    first: Sequence[LineResult], rounds: list[dict[str, LineResult]], *, of: ExtractJob = JOB
) -> dict[str, Any]:
    answers = Answers(first=first, again=rounds)
    return record_of(of, of.showing(DOCUMENT), answers, name="a.txt", sha256="", usage={})


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, {"max_tokens": 256, "thinking_token_budget": 0}),
        ({"thinking_token_budget": 100}, {"max_tokens": 356, "thinking_token_budget": 100}),
        ({"reasoning_effort": "low", "max_tokens": 900}, {"max_tokens": 900, "reasoning_effort": "low"}),
        ({"thinking_token_budget": "a lot"}, {"max_tokens": 256, "thinking_token_budget": "a lot"}),
    ],
)
def test_answers_do_not_think_unless_it_is_asked_for(params: dict[str, Any], expected: dict[str, Any]) -> None:
    asked = job.plan(json.dumps(SCHEMA).encode(), quotes=False, params=params, max_fields=25)
    assert dict(asked.params) == expected
