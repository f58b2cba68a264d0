"""Tests of list items that people add and drop: their numbers, the remaining items, and their share in gold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from features.documents.extraction.errors import ExtractionError
from features.documents.extraction.evaluation.evaluate import evaluate, judged
from features.documents.extraction.evaluation.gold import read_gold
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.scoring.items import ItemChange, Items, item_of, lists_of
from features.documents.extraction.scoring.reviews import Reviewed, as_reviewed, gold_of
from features.documents.extraction.scoring.verdicts import Change, Verdict

PARTS = {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}}
LINE = {"type": "object", "properties": {"count": {"type": "integer"}, "price": {"type": "number"}, "parts": PARTS}}
SCHEMA = FieldSchema.parse(
    {
        "type": "object",
        "properties": {
            "lines": {"type": "array", "maxItems": 4, "items": LINE},
            "tags": {"type": "array", "items": {"type": "string"}},
            "marks": {"type": "array", "items": {"type": "string", "enum": ["", "x"]}},
        },
    }
)
FIELDS: dict[str, Any] = {
    "lines": [{"count": n, "price": n / 2, "parts": [{"name": f"a{n}"}, {"name": f"b{n}"}]} for n in (1, 2, 3)],
    "tags": [],
}
NEW: dict[str, Any] = {"count": 9, "price": None, "parts": []}


def record() -> dict[str, Any]:
    features = {"is_null": False, "likeness": 1.0, "vote_share": 1.0, "num_candidates": 1, "num_rivals": 0}
    evidence = [
        {"path": f"lines[{n}].count", "value": n + 1, "score": 0.5, "spans": [], "features": features} for n in range(3)
    ]
    return {"document_id": "doc_1", "document": "a.pdf", "fields": FIELDS, "error": None, "evidence": evidence}


def added(*place: str | int, value: Any) -> ItemChange:
    return ItemChange(place=place, change=Change.ADD, value=value, by="key_1", at=5)


def dropped(*place: str | int) -> ItemChange:
    return ItemChange(place=place, change=Change.DROP, value=None, by="key_2", at=6)


CHANGES = [
    added("lines", 3, value=NEW),
    dropped("lines", 1),
    dropped("lines", 2, "parts", 0),
    added("tags", 0, value="red"),
    dropped("tags", 0),
]


def test_a_record_has_what_was_added_and_lacks_what_was_dropped_and_tells_both() -> None:
    found = as_reviewed(record(), [], CHANGES)
    first, third = FIELDS["lines"][0], FIELDS["lines"][2]
    assert found["fields"] == {"lines": [first, {**third, "parts": third["parts"][1:]}, NEW], "tags": []}
    assert [(each["path"], each["value"]) for each in found["evidence"]] == [
        ("lines[0].count", 1),
        ("lines[1].count", 3),
    ]
    told = [(each["item"], each["change"], each["path"], each["by"]) for each in found["item_changes"]]
    assert told == [
        ("lines[3]", "add", "lines[2]", "key_1"),
        ("lines[1]", "drop", None, "key_2"),
        ("lines[2].parts[0]", "drop", None, "key_2"),
        ("tags[0]", "add", None, "key_1"),
        ("tags[0]", "drop", None, "key_2"),
    ]
    gone = found["item_changes"][1]
    assert (gone["value"], [each["path"] for each in gone["evidence"]]) == (FIELDS["lines"][1], ["lines[1].count"])
    assert FIELDS["lines"][1]["count"] == 2


def test_added_items_stand_at_their_numbers_in_whatever_order_their_changes_are_read() -> None:
    changes = [added("tags", number, value=f"t{number}") for number in (3, 0, 2, 1)]
    found = as_reviewed(record(), [], [*changes, dropped("tags", 0)])
    assert found["fields"]["tags"] == ["t1", "t2", "t3"]
    assert {each["item"]: each["value"] for each in found["item_changes"]} == {f"tags[{n}]": f"t{n}" for n in range(4)}


def test_a_record_that_nobody_looked_at_is_the_same_as_it_was() -> None:
    assert as_reviewed(record(), []) == record()


def test_gold_has_the_changes_and_counts_them() -> None:
    decided = [Reviewed(place=("lines", n, "count"), verdict=Verdict.ACCEPT, value=n + 1, by="k", at=1) for n in (1, 2)]
    line = gold_of(record(), decided, CHANGES)
    assert line["known"] == ["lines[1].count", "lines[2].count", "lines[2].price", "lines[2].parts"]
    assert line["absent"] == {"lines": [FIELDS["lines"][1]], "lines[1].parts": [{"name": "a3"}]}
    gold = read_gold([json.dumps(line)], SCHEMA)
    rates = evaluate(SCHEMA, [record()], gold).overall.rates
    # right: the third line's count. Wrong: count, price and two parts of the second line, and a part of the third.
    # Missed: the count that was added.
    assert (rates.right, rates.wrong, rates.missed) == (1, 5, 1)
    assert sorted(each.is_right for each in judged(SCHEMA, [record()], gold)) == [False, True]


def test_of_two_same_items_one_may_be_absent() -> None:
    twice = {**record(), "fields": {"lines": [NEW, NEW], "tags": []}, "evidence": []}
    gold = read_gold([json.dumps(gold_of(twice, [], [dropped("lines", 1)]))], SCHEMA)
    assert evaluate(SCHEMA, [twice], gold).overall.rates.wrong == 1
    once = {**twice, "fields": {"lines": [NEW], "tags": []}}
    assert evaluate(SCHEMA, [once], gold).overall.rates.wrong == 0


@pytest.mark.parametrize(
    ("item", "num_wrong"),
    [
        ({"count": 6.0, "price": 0.5, "parts": []}, 2),
        ({"count": 6, "price": 0.5}, 2),
        ({"count": 6, "price": 0.5, "parts": [{"name": None}]}, 0),
        ({"count": 6, "price": None}, 0),
    ],
)
def test_an_absent_item_is_one_that_says_the_same_however_it_is_written(item: dict[str, Any], num_wrong: int) -> None:
    found = {**record(), "fields": {"lines": [{"count": 6, "price": 0.5, "parts": None}], "tags": []}, "evidence": []}
    line = {"document": "a.pdf", "fields": {"lines": []}, "known": [], "absent": {"lines": [item]}}
    gold = read_gold([json.dumps(line)], SCHEMA)
    assert evaluate(SCHEMA, [found], gold).overall.rates.wrong == num_wrong


def test_items_that_say_the_same_are_paired_without_comparing_each_with_each() -> None:
    lines = [{"count": n, "price": n, "parts": []} for n in range(200)]
    found = {**record(), "fields": {"lines": lines, "tags": []}, "evidence": []}
    line = {"document": "a.pdf", "fields": {"lines": [{"count": n, "price": float(n)} for n in range(200)]}}
    gold = read_gold([json.dumps(line)], SCHEMA)
    spent: list[int] = []
    evaluate(SCHEMA, [found], gold, spend=spent.append)
    assert sum(spent) < 200 * 200


@pytest.mark.parametrize(
    "absent", [["lines"], {"lines": 3}, {"other": []}, {"lines[9].parts": []}, {"lines": [{"colour": "red"}]}]
)
def test_absent_names_lists_of_the_line_and_fields_of_the_schema(absent: Any) -> None:
    line = {"document": "a.pdf", "fields": FIELDS, "absent": absent}
    with pytest.raises(ExtractionError, match="line 1"):
        read_gold([json.dumps(line)], SCHEMA)


def test_items_are_added_to_lists_that_were_extracted_and_not_to_what_is_added_or_dropped() -> None:
    found = [place for place, _ in lists_of(SCHEMA, Items(FIELDS, CHANGES))]
    assert found == [("lines",), ("lines", 0, "parts"), ("lines", 2, "parts"), ("tags",)]


def test_what_is_left_out_of_an_item_is_null() -> None:
    assert item_of(SCHEMA, ("lines",), {"count": 9}, name="lines[3]") == NEW
    assert item_of(SCHEMA, ("tags",), "red", name="tags[0]") == "red"
    assert item_of(SCHEMA, ("marks",), "", name="marks[0]") == ""
    with_parts = {"count": 9, "parts": [{"name": "x"}]}
    assert item_of(SCHEMA, ("lines",), with_parts, name="lines[3]") == {**with_parts, "price": None}


@pytest.mark.parametrize(
    ("array", "given", "said"),
    [
        ("lines", {"count": "9"}, r"lines\[3\]\.count cannot be '9': it must be a whole number\."),
        ("lines", {"count": 9, "colour": 1}, "it must be an object of count, price, parts"),
        ("lines", 9, "it must be an object of count, price, parts"),
        ("lines", {"count": None}, "has no value"),
        ("lines", {"parts": {}}, "it must be a list"),
        ("lines", {"parts": [{"name": 1}]}, r"lines\[3\]\.parts\[0\]\.name cannot be '1': it must be a text"),
        ("tags", None, "has no value"),
        ("tags", 3, "it must be a text"),
        ("tags", "", "it must be a text, of at least 1 character"),
        ("lines", {"parts": [{"name": ""}]}, r"lines\[3\]\.parts\[0\] has no value"),
    ],
)
def test_an_item_that_the_schema_does_not_allow_is_refused(array: str, given: Any, said: str) -> None:
    with pytest.raises(ExtractionError, match=said):
        item_of(SCHEMA, (array,), given, name=f"{array}[3]")
