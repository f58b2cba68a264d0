"""Tests of the supported parts of a JSON schema, and of refusing the rest."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from features.documents.extraction.errors import SchemaError
from features.documents.extraction.fields.leaf import Kind, LeafType, Metric
from features.documents.extraction.fields.paths import build, path_of, spell
from features.documents.extraction.fields.schema import FieldSchema
from tests.features.documents.extraction.fields.builders import INVOICE


def with_field(field: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"outer": {"type": "object", "properties": {"field": field}}}}


def test_leaves_come_in_the_order_of_the_schema_with_their_annotations() -> None:
    schema = FieldSchema.parse(json.dumps(INVOICE))
    assert [spell(leaf.path) for leaf in schema.leaves] == [
        *("number", "vendor.name", "vendor.iban", "issued", "due", "currency"),
        *("lines[].article", "lines[].quantity", "lines[].amount", "tags[]", "net", "tax", "total", "paid"),
    ]
    number = schema.leaf(("number",))
    assert (number.description, number.required_for_auto, number.metric) == ("number of the invoice", True, Metric.ANLS)
    assert schema.leaf(("total",)).weight == 3.0
    assert schema.leaf(("lines", "*", "article")).key
    assert schema.arrays() == (("lines",), ("tags",))


def test_metric_kind_and_grounding_follow_from_the_type_where_nothing_is_said() -> None:
    schema = FieldSchema.parse(INVOICE)
    due, tags, paid = schema.leaf(("due",)), schema.leaf(("tags", "*")), schema.leaf(("paid",))
    assert (due.metric, due.kind, due.nullable) == (Metric.DATE, Kind.DATE, True)
    assert (tags.metric, tags.description) == (Metric.SET, "words on the stamp")
    assert (paid.kind, paid.ground, paid.type) == (Kind.BOOLEAN, False, LeafType.BOOLEAN)
    assert schema.leaf(("net",)).nullable
    assert schema.leaf(("currency",)).enum == ("EUR", "USD")


@pytest.mark.parametrize(
    ("field", "is_copied"),
    [
        ({"type": "string"}, True),
        ({"type": "number", "x-derived": False}, True),
        ({"type": ["string", "null"], "format": "date"}, True),
        ({"type": "array", "items": {"type": "string"}}, True),
        ({"type": "string", "x-derived": True}, False),
        ({"type": "array", "items": {"type": "string"}, "x-derived": True}, False),
        ({"type": "array", "items": {"type": "string", "x-derived": True}}, False),
        ({"anyOf": [{"type": "number", "x-derived": True}, {"type": "null"}]}, False),
        ({"type": "number", "x-tokenmill": {"ground": False}}, False),
        ({"enum": ["a", "b"]}, False),
        ({"const": 7}, False),
        ({"type": "boolean"}, False),
        ({"type": "boolean", "x-tokenmill": {"ground": True}}, False),
    ],
)
def test_a_field_is_copied_unless_it_is_a_choice_or_concluded(field: dict[str, Any], is_copied: bool) -> None:
    (leaf,) = FieldSchema.parse(with_field(field)).leaves
    assert leaf.is_copied is is_copied


def test_the_output_schema_lets_every_leaf_be_null_and_no_property_be_left_out() -> None:
    schema = FieldSchema.parse(INVOICE)
    validator = jsonschema_rs.validator_for(schema.output_schema())
    absent = build([(leaf.path, None) for leaf in schema.leaves if "*" not in leaf.path], schema.arrays())
    assert validator.is_valid(absent)
    assert not validator.is_valid({**absent, "total": "12"})
    assert not validator.is_valid({key: value for key, value in absent.items() if key != "paid"})
    lines = build([(("lines", 0, "article"), "Nut"), (("lines", 0, "quantity"), 1), (("lines", 0, "amount"), None)])
    assert validator.is_valid({**absent, **lines})


@pytest.mark.parametrize(
    "field",
    [
        {"type": "string", "default": "unknown"},
        {"type": "array", "items": {"type": "string"}, "default": []},
        {"type": "string", "enum": ["a", "b"], "default": "a"},
        {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": 3},
    ],
)
def test_a_default_answers_nothing(field: dict[str, Any]) -> None:
    without = {name: value for name, value in field.items() if name != "default"}
    assert FieldSchema.parse(with_field(field)) == FieldSchema.parse(with_field(without))


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
@pytest.mark.parametrize("null", [[], [{"type": "null"}]])
def test_a_decimal_of_pydantic_is_asked_as_a_number(keyword: str, null: list[dict[str, Any]]) -> None:
    number = {"type": "number", "minimum": 0}
    decimal = {keyword: [number, {"type": "string", "pattern": r"^\d+$"}, *null], "title": "Total"}
    assert FieldSchema.parse(with_field(decimal)) == FieldSchema.parse(with_field({keyword: [number, *null]}))


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, "allows several shapes"),
        ({"anyOf": [{"type": "number"}, {"type": "string"}, {"type": "boolean"}]}, "allows several shapes"),
        ({"$ref": "#/$defs/A", "anyOf": [{"type": "string"}]}, "`\\$ref` and `anyOf` are both given"),
        ({"type": ["string", "number"]}, "`type` is"),
        ({"type": "string", "not": {"const": ""}}, "`not` is not understood"),
        ({"type": "object"}, "asks for nothing"),
        (
            {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": True},
            "only named fields",
        ),
        ({"type": "array"}, "`items`"),
        ({"type": "array", "items": {"type": "array", "items": {"type": "string"}}}, "arrays of arrays"),
        ({"type": "array", "items": {"type": "string"}, "minItems": 1}, "`minItems`"),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "`uniqueItems`"),
        ({"$ref": "#/properties/outer"}, "leads back to itself"),
        ({"$ref": "https://example.com/x.json"}, "leads out of the schema"),
        ({"$ref": "#/$defs/None"}, "leads nowhere"),
        ({"type": "string", "x-tokenmill": {"metric": "f1"}}, "`metric` is 'f1'; it may be anls, date, exact"),
        ({"type": "number", "x-tokenmill": {"metric": "date"}}, "for fields of type string"),
        ({"type": "number", "x-tokenmill": {"metric": "set"}}, "for arrays of plain values"),
        ({"type": "string", "x-tokenmill": {"grounded": True}}, "has 'grounded'; here it may have ground, key"),
        ({"type": "string", "x-tokenmill": {"ground": "yes"}}, "must be true or false"),
        ({"type": "string", "x-derived": "yes"}, "`x-derived` is 'yes'; it must be true or false"),
        ({"type": "string", "x-derived": True, "x-tokenmill": {"ground": True}}, "contradict each other"),
        (
            {"type": "object", "properties": {"a": {"type": "string"}}, "x-derived": True},
            "`x-derived` is not understood",
        ),
        (
            {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}, "x-derived": True},
            "`x-derived` belongs to the fields of an array's objects",
        ),
        ({"type": "string", "x-tokenmill": {"key": True}}, "`key` belongs to a field of an array's objects"),
        ({"type": "string", "x-tokenmill": {"weight": 0}}, "a number above 0"),
        ({"type": "object", "properties": {"a.b": {"type": "string"}}}, "is ambiguous"),
        ({"type": "object", "properties": {"a\0": {"type": "string"}}}, r"'a\\x00' has a control character"),
        ({"type": "object", "properties": {"a\ud800": {"type": "string"}}}, "half a surrogate pair"),
        ({"enum": []}, "`enum`|`type`"),
        ({"type": "string", "enum": ["a", 1]}, "1 is one of its values but not of its type, string"),
        ({"type": "integer", "enum": [1, True]}, "True is one of its values"),
        ({"type": "string", "const": None}, "`const` a value"),
        ({"type": "array", "items": {"type": "string"}, "maxItems": True}, "`maxItems` is True"),
        (True, "is no schema"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_its_path(field: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason) as refused:
        FieldSchema.parse(with_field(field))
    assert refused.value.path[0] == "outer"


@pytest.mark.parametrize("schema", ["{", "[]", '{"type": "string"}', '{"type": "object", "properties": {}}'])
def test_what_is_no_schema_of_fields_is_refused(schema: str) -> None:
    with pytest.raises(SchemaError):
        FieldSchema.parse(schema)


def test_a_schema_that_refers_to_itself_further_down_is_refused() -> None:
    tree = {"type": "object", "properties": {"name": {"type": "string"}, "child": {"$ref": "#/$defs/Tree"}}}
    with pytest.raises(SchemaError, match="must be finite"):
        FieldSchema.parse({"$defs": {"Tree": tree}, **tree})


def test_a_check_of_an_unknown_field_is_refused() -> None:
    with pytest.raises(SchemaError, match="'nett' is no field"):
        FieldSchema.parse({**INVOICE, "x-tokenmill": {"checks": ["sum(lines.amount) == nett"]}})


def test_a_place_is_spelled_and_built_as_it_stands_in_the_answer() -> None:
    place = ("lines", 1, "amount")
    assert spell(place) == "lines[1].amount"
    assert path_of(place) == ("lines", "*", "amount")
    assert build([(("lines", 0, "amount"), 1), (place, 2), (("a", "b"), None)], [("tags",)]) == {
        "tags": [],
        "lines": [{"amount": 1}, {"amount": 2}],
        "a": {"b": None},
    }
