"""Tests of the typical answer for a schema, whatever the schema specifies or leaves out."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from cli.estimating.estimate import Estimate
from cli.estimating.typical_answer import typical_answer

TEXT = {"type": "string"}
NULL = {"type": "null"}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        True,
        {"type": "object"},
        {"type": "object", "properties": {"a": TEXT, "b": {"type": ["integer", "null"]}}, "required": ["a"]},
        {"properties": {"a": {"anyOf": [NULL, {"type": "number"}]}, "b": {"oneOf": [TEXT, NULL]}}},
        {"type": "object", "properties": {"a": {"enum": ["x", "longer", None]}, "b": {"const": 7}}},
        {"type": "array", "items": TEXT, "minItems": 5},
        {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "boolean"}}}, "maxItems": 2},
        {"type": "array"},
        {"type": "string", "minLength": 200},
        {"type": "string", "maxLength": 3},
        {"type": "string", "format": "date"},
        {"anyOf": [NULL]},
        {"$defs": {"a": {"type": "integer"}}, "type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}},
    ],
)
def test_a_typical_answer_keeps_to_its_schema(schema: Any) -> None:
    for is_empty in (False, True):
        jsonschema_rs.validator_for(schema).validate(json.loads(typical_answer(schema, is_empty=is_empty)))


def test_a_schema_that_names_itself_ends() -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert json.loads(typical_answer(schema))["next"]


def test_what_may_be_null_is_null_in_an_empty_answer() -> None:
    schema = {"properties": {"a": {"anyOf": [TEXT, NULL]}, "b": {"type": ["string", "null"]}, "c": TEXT}}
    found = json.loads(typical_answer(schema, is_empty=True))
    assert (found["a"], found["b"], found["c"] is None) == (None, None, False)


def test_passes_are_added_and_what_is_unknown_stays_so() -> None:
    known = Estimate(num_lines=2, input_tokens=100, output_tokens=50, most_tokens=300)
    tenth = known.share(0.1, most_tokens=7)
    assert known.plus(tenth) == Estimate(num_lines=2, input_tokens=110, output_tokens=55, most_tokens=307)
    unknown = Estimate(num_lines=1, input_tokens=1, output_tokens=None, most_tokens=None)
    assert known.plus(unknown) == Estimate(num_lines=3, input_tokens=101, output_tokens=None, most_tokens=None)
    assert [one.shown().partition(",")[0] for one in (known, unknown)] == ["likely 150 (100 in", "1 in"]
