"""Tests that text which occurs nowhere in a document is never a value, for any kind, place and question."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from features.documents.extraction.course.document import again_requests, record_of
from features.documents.extraction.course.job import ExtractJob, plan
from features.documents.extraction.course.line_results import Answers, LineResult
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.passes.excerpts import Window, likely_tokens
from features.documents.extraction.scoring.features import Features
from features.documents.extraction.scoring.score import NOWHERE

TEXT = "Invoice R-17 of Ash Ltd, 5 March 2024.\nNut 60.00\nBolt 40.00\nTotal: 100.00 EUR\nIt was settled on 3 May."
ITEM = {"type": "object", "properties": {"article": {"type": "string"}, "amount": {"type": "number"}}}
LINES = {"type": "array", "items": ITEM}


def job(properties: dict[str, Any], *, quotes: bool = True) -> ExtractJob:
    schema = json.dumps({"type": "object", "properties": properties}).encode()
    return plan(schema, quotes=quotes, params={}, max_fields=25)


def said(value: Any, quote: str = "") -> dict[str, Any]:
    return {"value": value, "quote": quote}


def recorded(asked: ExtractJob, *answers: Any, text: str = TEXT, **others: Any) -> dict[str, Any]:
    showing = asked.showing(parse(text.encode(), "a.txt", Limits()))
    first = [LineResult(text=json.dumps(answer)) for answer in answers]
    return record_of(asked, showing, Answers(first=first, **others), name="a.txt", sha256="", usage={})


def evidence(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["path"]: each for each in record["evidence"]}


COPIED = [
    ({"type": "string"}, "Zorg GmbH"),
    ({"type": "number"}, 99.99),
    ({"type": "integer"}, 77),
    ({"type": ["integer", "null"]}, 77),
    ({"anyOf": [{"type": "number"}, {"type": "null"}]}, 99.99),
    ({"type": "number", "x-tokenmill": {"metric": "money"}}, 99.99),
    ({"type": "string", "format": "date"}, "2024-03-06"),
    ({"type": "string", "format": "date-time"}, "2024-03-06T10:00:00Z"),
    ({"type": "string", "x-derived": False}, "Zorg GmbH"),
]


@pytest.mark.parametrize("quote", ["", "Zorg", "Total: 100.00 EUR"], ids=["no_quote", "quote_nowhere", "quote_stands"])
@pytest.mark.parametrize(("field", "value"), COPIED)
def test_a_copy_of_words_that_stand_nowhere_is_null_with_the_answer_beside_it(
    field: dict[str, Any], value: Any, quote: str
) -> None:
    record = recorded(job({"field": field}), {"field": said(value, quote)})
    (told,) = record["evidence"]
    assert (record["fields"], told["value"]) == ({"field": None}, None)
    assert (told["answer"], told["note"], told["review"], told["spans"]) == (value, "not_in_document", True, [])
    assert told["level"] == "low"
    assert Features.from_json(json.loads(json.dumps(told["features"]))).is_null


def test_without_quotes_the_same_values_are_null() -> None:
    properties = {f"field{number}": field for number, (field, _) in enumerate(COPIED)}
    answer = {f"field{number}": value for number, (_, value) in enumerate(COPIED)}
    record = recorded(job(properties, quotes=False), answer)
    assert set(record["fields"].values()) == {None}
    assert {name: each["answer"] for name, each in evidence(record).items()} == answer


KEPT = [
    ({"enum": ["paid", "open"]}, "paid"),
    ({"type": "integer", "enum": [77, 78]}, 77),
    ({"const": "v9"}, "v9"),
    ({"type": "boolean"}, True),
    ({"type": "string", "x-derived": True}, "construction"),
    ({"type": "number", "x-derived": True}, 77),
    ({"type": "string", "format": "date", "x-derived": True}, "2025-01-01"),
    ({"type": "string", "x-tokenmill": {"ground": False}}, "construction"),
]


@pytest.mark.parametrize("quote", ["", "not in it"])
@pytest.mark.parametrize(("field", "value"), KEPT)
def test_a_choice_and_what_is_concluded_are_kept_and_reviewed(field: dict[str, Any], value: Any, quote: str) -> None:
    record = recorded(job({"field": field}), {"field": said(value, quote)})
    (told,) = record["evidence"]
    assert record["fields"] == {"field": value}
    assert (told["value"], told["review"]) == (value, True)
    assert NOWHERE in told["reasons"]
    assert "note" not in told


@pytest.mark.parametrize(("field", "value"), KEPT)
def test_words_that_stand_in_the_document_speak_for_what_is_concluded_from_them(
    field: dict[str, Any], value: Any
) -> None:
    (told,) = recorded(job({"field": field}), {"field": said(value, "settled on 3 May")})["evidence"]
    assert told["value"] == value
    assert NOWHERE not in told["reasons"]


def test_in_lists_and_objects_only_what_is_invented_is_null() -> None:
    asked = job({"vendor": {"type": "object", "properties": {"name": {"type": "string"}}}, "lines": LINES})
    lines = [
        {"article": said("Nut", "Nut"), "amount": said(60, "60.00")},
        {"article": said("Bolt", "Bolt"), "amount": said(41.5, "Bolt 40.00")},
        {"article": said("Saw", "Saw"), "amount": said(77, "77")},
    ]
    record = recorded(asked, {"vendor": {"name": said("Zorg", "Zorg")}, "lines": lines})
    assert record["fields"] == {
        "vendor": {"name": None},
        "lines": [
            {"article": "Nut", "amount": 60},
            {"article": "Bolt", "amount": None},
            {"article": None, "amount": None},
        ],
    }
    noted = [name for name, each in evidence(record).items() if "note" in each]
    assert noted == ["vendor.name", "lines[1].amount", "lines[2].article", "lines[2].amount"]


def test_an_item_of_a_list_of_values_keeps_its_place() -> None:
    record = recorded(
        job({"tags": {"type": "array", "items": {"type": "string"}}}),
        {"tags": [said("Nut"), said("Zorg"), said("Bolt")]},
    )
    assert record["fields"] == {"tags": ["Nut", None, "Bolt"]}
    assert evidence(record)["tags[1]"]["answer"] == "Zorg"


@pytest.mark.parametrize("value", ["", "  ", None])
def test_an_empty_text_is_null_without_a_note(value: str | None) -> None:
    (told,) = recorded(job({"field": {"type": "string"}}), {"field": said(value)})["evidence"]
    assert told["value"] is None
    assert "note" not in told


def test_what_is_invented_is_asked_again_though_its_quote_stands() -> None:
    asked = job({"total": {"type": "number"}})
    first = Answers(first=[LineResult(text=json.dumps({"total": said(99.99, "Total: 100.00 EUR")}))])
    showing = asked.showing(parse(TEXT.encode(), "a.txt", Limits()))
    assert list(again_requests(asked, showing, first)) == ["0"]


@pytest.mark.parametrize(
    ("second", "fields", "noted"),
    [
        (said(100, "Total: 100.00 EUR"), 100, False),
        (said(88.88, "Total: 100.00 EUR"), None, True),
        (None, None, False),
    ],
    ids=["found", "invented", "null"],
)
def test_the_second_answer_counts_for_what_was_invented_first(second: Any, fields: Any, noted: bool) -> None:
    again = [{"0": LineResult(text=json.dumps({"total": second}))}]
    asked = job({"total": {"type": "number"}})
    record = recorded(asked, {"total": said(99.99, "Total: 100.00 EUR")}, again=again)
    assert record["fields"] == {"total": fields}
    assert ("note" in record["evidence"][0]) is noted


def test_a_second_reading_that_has_the_same_invention_proves_nothing() -> None:
    listed = {"values": [{"kind": "text", "value": "Zorg GmbH", "quote": "Zorg GmbH"}]}
    second = {0: LineResult(text=json.dumps(listed))}
    asked = job({"vendor": {"type": "string"}})
    record = recorded(asked, {"vendor": said("Zorg GmbH", "Zorg GmbH")}, second_readings=second)
    assert record["fields"] == {"vendor": None}


def test_of_a_long_document_a_value_counts_that_stands_where_no_question_showed_it() -> None:
    window = Window(max_tokens=900, count=likely_tokens)
    asked = replace(job({"vendor": {"type": "string"}, "total": {"type": "number"}}, quotes=False), window=window)
    filler = "\n\n".join(f"Paragraph {number} of the terms says little." for number in range(400))
    text = f"The vendor is Ash Ltd.\n\n{filler}\n\nHidden among terms: 4711.25"
    record = recorded(asked, {"vendor": "Zorg GmbH", "total": 4711.25}, text=text)
    shown = asked.excerpt(0, asked.showing(parse(text.encode(), "a.txt", Limits()))).layout.text
    assert "4711.25" not in shown
    assert record["fields"] == {"vendor": None, "total": 4711.25}
    assert evidence(record)["total"]["review"]


def test_a_check_of_what_is_withheld_tells_nothing() -> None:
    schema = {
        "type": "object",
        "properties": {"net": {"type": "number"}, "total": {"type": "number"}},
        "x-tokenmill": {"checks": ["net == total"]},
    }
    asked = plan(json.dumps(schema).encode(), quotes=True, params={}, max_fields=25)
    record = recorded(asked, {"net": said(99.99, ""), "total": said(100, "Total: 100.00 EUR")})
    assert record["fields"] == {"net": None, "total": 100}
    assert evidence(record)["total"]["features"].get("violations") is None
