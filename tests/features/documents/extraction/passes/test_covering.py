"""Tests of questions with found values covered: their text, and what an answer to them says about each value."""

from __future__ import annotations

import json
from typing import Any

import pytest

from features.documents.extraction.course import job
from features.documents.extraction.course.document import covered_questions, covered_texts, record_of, whole_reading
from features.documents.extraction.course.line_results import Answers, LineResult
from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.layout import layout
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.grounding.spans import Span
from features.documents.extraction.passes.covered_text import COVER, covered
from features.documents.extraction.passes.document_reading import DocumentReading

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["bill", "offer"], "x-tokenmill": {"ground": False}},
        "issued": {"type": "string", "format": "date"},
        "total": {"type": "number"},
        "lines": {"type": "array", "items": {"type": "string"}},
    },
}
TEXT = "Bill\nIssued 2024-03-05   Total 119.00\nNut\nBolt\nProposal of 2024-05-09\n"
JOB = job.plan(json.dumps(SCHEMA).encode(), quotes=True, params={}, max_fields=25)
FIRST = {
    "kind": {"value": "bill", "quote": "Bill"},
    "issued": {"value": "2024-03-05", "quote": "Issued 2024-03-05"},
    "total": {"value": 119.0, "quote": "119.00"},
    "lines": [{"value": "Nut", "quote": "Nut"}],
}


def document() -> Document:
    return parse(TEXT.encode(), "a.txt", Limits())


def answer(**fields: Any) -> LineResult:
    return LineResult(text=json.dumps(dict.fromkeys(FIRST) | {"lines": []} | fields))


def evidence(behind: LineResult) -> dict[str, dict[str, Any]]:
    answers = Answers(first=[LineResult(text=json.dumps(FIRST))], covered={0: behind})
    found = record_of(JOB, JOB.showing(document()), answers, name="a.txt", sha256="", usage={})
    return {each["path"]: each for each in found["evidence"]}


def test_no_value_that_was_found_is_shown_and_all_else_is() -> None:
    showing = JOB.showing(document())
    reading = whole_reading(JOB, showing, Answers(first=[LineResult(text=json.dumps(FIRST))]))
    assert isinstance(reading, DocumentReading)
    (shown,) = covered_texts(JOB, showing, reading)
    assert shown.text.split("\n") == [COVER, f"{COVER}   Total {COVER}", COVER, "Bolt", "Proposal of 2024-05-09", ""]
    place = shown.text.index("2024-05-09")
    start, end = shown.to_document(place, place + 10)
    assert document().text[start:end] == "2024-05-09"


@pytest.mark.parametrize(("vendor", "longest"), [("Ash Ltd", 48), ("Ash " * 20 + "Ltd", 83)])
def test_an_answer_behind_covers_cannot_run_on_in_a_text_or_a_quote(vendor: str, longest: int) -> None:
    texts = {"vendor": {"type": "string"}, "code": {"type": "string", "maxLength": 5}}
    schema = {"type": "object", "properties": {**texts, "day": {"type": "string", "format": "date"}}}
    asked = job.plan(json.dumps(schema).encode(), quotes=True, params={}, max_fields=25)
    showing = asked.showing(parse(f"From {vendor}".encode(), "a.txt", Limits()))
    first = LineResult(text=json.dumps({"vendor": {"value": vendor, "quote": vendor}, "code": None, "day": None}))
    reading = whole_reading(asked, showing, Answers(first=[first]))
    assert isinstance(reading, DocumentReading)
    ((_, request),) = covered_questions(asked, showing, reading)
    fields = request.response_format["json_schema"]["schema"]["properties"]
    found = {name: field["anyOf"][0]["properties"] for name, field in fields.items()}
    assert [each["quote"]["maxLength"] for each in found.values()] == [longest] * 3
    assert [each["value"].get("maxLength") for each in found.values()] == [longest, 5, None]


@pytest.mark.parametrize(
    ("spans", "text"),
    [
        ([], "ab cd  ef"),
        ([Span(0, 2)], f"{COVER} cd  ef"),
        ([Span(3, 5), Span(0, 2)], f"{COVER}  ef"),
        ([Span(0, 4), Span(3, 5)], f"{COVER}  ef"),
        ([Span(7, 9)], f"ab cd  {COVER}"),
    ],
    ids=["none", "one", "beside one another", "over one another", "at the end"],
)
def test_what_is_left_of_a_text_leads_to_where_it_stood(spans: list[Span], text: str) -> None:
    shown = covered(layout(parse(b"ab cd  ef", "a.txt", Limits())), spans)
    assert shown.text == text
    for word in text.replace(COVER, " ").split():
        start, end = shown.to_document(text.index(word), text.index(word) + len(word))
        assert "ab cd  ef"[start:end] == word


def test_another_value_behind_the_cover_is_told_with_its_place_and_lowers_the_score() -> None:
    other = evidence(answer(issued={"value": "2024-05-09", "quote": "2024-05-09"}))["issued"]
    nothing = evidence(answer())["issued"]
    assert (other["features"]["covered"], nothing["features"]["covered"]) == ("other", "nothing")
    (told,) = other["others"]
    assert TEXT[told["spans"][0]["start"] : told["spans"][0]["end"]] == "2024-05-09"
    assert "another value is found once this one is covered" in other["reasons"]
    assert other["score"] < nothing["score"] - 0.2
    assert "others" not in nothing


def test_what_is_concluded_is_compared_by_the_words_it_is_concluded_from() -> None:
    found = evidence(answer(kind={"value": "offer", "quote": "Proposal"}))["kind"]
    assert found["features"]["covered"] == "other"
    assert [each["value"] for each in found["others"]] == ["offer"]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"value": 119.0, "quote": "119.00"}, "same"),
        ({"value": 7.0, "quote": "7.00"}, "nowhere"),
        (None, "nothing"),
    ],
)
def test_values_that_the_document_has_not_besides_are_no_other_values(said: Any, expected: str) -> None:
    found = evidence(answer(total=said))["total"]
    assert (found["features"]["covered"], "others" in found) == (expected, False)


def test_of_items_and_of_fields_that_were_not_answered_nothing_is_said() -> None:
    cut = LineResult(text='{"kind": null, "issued": {"value": "2024-0')
    found = evidence(cut)
    assert [found[path]["features"].get("covered") for path in ("kind", "issued", "total", "lines[0]")] == [
        "nothing",
        None,
        None,
        None,
    ]
    failed = evidence(LineResult(error={"code": "failed", "message": "x"}))
    assert "covered" not in failed["issued"]["features"]
