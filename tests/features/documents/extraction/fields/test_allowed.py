"""Tests of the values that a person may enter, and of the errors for others."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from features.documents.extraction.errors import ExtractionError
from features.documents.extraction.fields import allowed
from features.documents.extraction.fields.allowed import problem_of
from features.documents.extraction.fields.leaf import Leaf
from features.documents.extraction.fields.paths import ITEM
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.scoring.items import item_of

NUMBER = {"type": "number", "minimum": 0, "exclusiveMaximum": 100}
SIZE = {"type": "object", "properties": {"size": {"type": "integer"}}}
NAMES = {"type": "array", "items": {"type": "string"}}
SCHEMA = FieldSchema.parse(
    {
        "type": "object",
        "properties": {
            "vendor": {"type": "string", "maxLength": 5},
            "paid": {"type": "boolean"},
            "currency": {"enum": ["EUR", "USD"], "type": "string"},
            "day": {"type": "string", "format": "date"},
            "code": {"type": "string", "pattern": "^[A-Z]{2}$"},
            "rate": NUMBER,
            "dozens": {"type": "integer", "multipleOf": 12},
            "lines": {"type": "array", "maxItems": 9, "items": {"type": "object", "properties": {"price": NUMBER}}},
            "tags": {"type": "array", "items": {"type": "string"}},
            "boxes": {"type": "array", "items": {"type": "object", "properties": {"names": NAMES}}},
        },
    }
)


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("vendor", "Birch", None),
        ("vendor", 3, "it must be a text, of at most 5 characters"),
        ("vendor", "Birches", "it must be a text, of at most 5 characters"),
        ("paid", True, None),
        ("paid", "yes", "it must be true or false"),
        ("paid", 1, "it must be true or false"),
        ("currency", "EUR", None),
        ("currency", "GBP", 'it must be one of "EUR", "USD"'),
        ("day", "2026-02-28", None),
        ("day", "28.2.2026", "it must be a text, written as a day like 2026-11-23"),
        ("code", "de", "it must be a text, in the form ^[A-Z]{2}$"),
        ("rate", 3, None),
        ("rate", "3", "it must be a number, at least 0, below 100"),
        ("rate", 100, "it must be a number, at least 0, below 100"),
        ("dozens", 24, None),
        ("dozens", 24.5, "it must be a whole number, a multiple of 12"),
        ("dozens", True, "it must be a whole number, a multiple of 12"),
    ],
)
def test_a_value_must_be_one_that_its_leaf_can_have(path: str, value: Any, problem: str | None) -> None:
    assert problem_of(SCHEMA.leaf((path,)), value) == problem


def test_what_a_person_may_give_is_told_as_a_schema() -> None:
    assert SCHEMA.value_schema(("rate",)) == NUMBER
    assert SCHEMA.value_schema(("currency",)) == {"type": "string", "enum": ["EUR", "USD"]}
    lines = jsonschema_rs.validator_for(SCHEMA.value_schema(("lines",)))
    given = ([{"price": 3}], [{"price": None}], [{"price": "3"}], [None], [{"price": 3}] * 10)
    assert [lines.is_valid(items) for items in given] == [True, False, False, False, False]
    tags = jsonschema_rs.validator_for(SCHEMA.value_schema(("tags",)))
    assert [tags.is_valid(items) for items in (["a"], [None], [3])] == [True, False, False]


def test_an_item_of_a_list_in_an_item_is_not_null_by_its_schema_nor_as_it_is_read() -> None:
    boxes = jsonschema_rs.validator_for(SCHEMA.value_schema(("boxes",)))
    assert [boxes.is_valid([{"names": names}]) for names in (["a"], ["a", None])] == [True, False]
    with pytest.raises(ExtractionError, match="has no value"):
        item_of(SCHEMA, ("boxes",), {"names": ["a", None]}, name="boxes[0]")


CHOICE = {"enum": ["", "EUR"], "type": "string"}
LISTS = FieldSchema.parse(
    {
        "type": "object",
        "properties": {
            "tags": {"type": "array", "items": {"type": "string"}},
            "signs": {"type": "array", "items": CHOICE},
            "lines": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}, "sign": CHOICE, "parts": NAMES, "of": SIZE},
                },
            },
        },
    }
)


@pytest.mark.parametrize(
    ("array", "item"),
    [
        *(("tags", item) for item in ("a", "", None, 3)),
        *(("signs", item) for item in ("", "EUR", "USD")),
        *(("lines", {"name": item}) for item in ("a", "", None)),
        *(("lines", {"sign": item}) for item in ("", None)),
        *(("lines", {"parts": item}) for item in (["a"], [], [""])),
        *(("lines", {"of": {"size": item}}) for item in (0, None)),
    ],
)
def test_an_item_may_be_given_if_and_only_if_its_schema_allows_it(array: str, item: Any) -> None:
    whole = {"name": None, "sign": None, "parts": [], "of": {"size": None}} | item if array == "lines" else item
    schema = jsonschema_rs.validator_for(LISTS.value_schema((array,)))
    try:
        item_of(LISTS, (array,), item, name="item")
    except ExtractionError:
        assert not schema.is_valid([whole])
    else:
        assert schema.is_valid([whole])


def test_an_item_is_corrected_by_the_rule_by_which_it_is_added() -> None:
    assert problem_of(LISTS.leaf(("tags", ITEM)), "") == "it must be a text, of at least 1 character"
    assert problem_of(LISTS.leaf(("signs", ITEM)), "") is None
    assert LISTS.value_schema(("tags", ITEM)) == LISTS.value_schema(("tags",))["items"]


def leaf_with(pattern: str) -> Leaf:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    return FieldSchema.parse(schema).leaf(("a",))


def test_what_checks_a_value_is_made_once_for_a_list_and_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    leaf = leaf_with("^once$")
    make, made = jsonschema_rs.validator_for, []

    def noted(schema: Any, **options: Any) -> Any:
        made.append(schema)
        return make(schema, **options)

    allowed._validator.cache_clear()
    monkeypatch.setattr(jsonschema_rs, "validator_for", noted)
    assert [problem_of(leaf, value) is None for value in ("once", "twice", "once")] == [True, False, True]
    assert len(made) == 1
    for number in range(20):
        problem_of(leaf_with(f"^{number}$"), "1")
    assert allowed._validator.cache_info().currsize < 10


def test_a_pattern_is_checked_or_told_as_too_large() -> None:
    long = leaf_with(r"^\p{L}{1,255}$")
    assert problem_of(long, "ä" * 255) is None
    assert problem_of(long, "ä" * 256) == r"it must be a text, in the form ^\p{L}{1,255}$"
    assert "too large to be checked" in (problem_of(leaf_with(r"^\p{L}{900}$"), "ä" * 900) or "")
