"""What a person may say that a value is, and what they are told where it cannot be."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from extraction.errors import ExtractionError
from extraction.fields.allowed import problem_of
from extraction.fields.schema import FieldSchema
from extraction.scoring.items import item_of

NUMBER = {"type": "number", "minimum": 0, "exclusiveMaximum": 100}
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
    assert [lines.is_valid(items) for items in given] == [True, True, False, False, False]
    tags = jsonschema_rs.validator_for(SCHEMA.value_schema(("tags",)))
    assert [tags.is_valid(items) for items in (["a"], [None], [3])] == [True, False, False]


def test_an_item_of_a_list_in_an_item_is_not_null_by_its_schema_nor_as_it_is_read() -> None:
    boxes = jsonschema_rs.validator_for(SCHEMA.value_schema(("boxes",)))
    assert [boxes.is_valid([{"names": names}]) for names in (["a"], ["a", None])] == [True, False]
    with pytest.raises(ExtractionError, match="has no value"):
        item_of(SCHEMA, ("boxes",), {"names": ["a", None]}, name="boxes[0]")
