"""Tests of refusals at submission, by name, without a model; and of the allowed contents of a structured output."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from typing import Any

import pytest

from engine.errors import InvalidParamsError, InvalidRequestError
from engine.grammars.grammar import check_grammar
from engine.params import SamplingParams
from engine.structured import MAX_LEVELS, StructuredOutput


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array", "uniqueItems": True}, r"uses uniqueItems, which is not supported"),
        ({"type": "object", "if": {"contains": {}}, "then": {}}, r"uses if, then, which is not supported"),
        ({"properties": {"a": {"not": {"pattern": "a"}}}}, r"uses not, which is not supported"),
        ({"type": "strin"}, r"The JSON schema cannot be used: Invalid type: strin"),
        ({"$ref": "#/$defs/x"}, r"Pointer '/\$defs/x' does not exist"),
        (
            {"oneOf": [{"pattern": "a"}, {"maxLength": 3}]},
            "Set one_of_as_any_of to true in the line to approximate oneOf with anyOf\\.$",
        ),
    ],
)
def test_a_schema_that_cannot_be_kept_is_refused_with_the_reason(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        check_grammar(StructuredOutput(json=schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "uniqueItems": False},
        {"type": "array", "uniqueItems": True, "maxItems": 1},
        {"type": ["string", "null"], "uniqueItems": True},
        {"properties": {"a": {"type": "string", "format": "uuid4"}, "b": {"format": "uri-reference"}}},
        {"$defs": {"a": {"format": "path"}}, "items": [{"$ref": "#/$defs/a"}], "additionalItems": {"format": "byte"}},
        {"anyOf": [{"patternProperties": {"^a": {"format": "color"}}}, {"uniqueItems": False}]},
        {
            "properties": {"a": {"$ref": "#/components/schemas/a~1b"}},
            "components": {"schemas": {"a/b": {"format": "x"}}},
        },
        {"properties": {"format": {"type": "string"}, "uniqueItems": {"enum": [{"format": "color"}]}}},
        {"$ref": "#", "uniqueItems": False},
    ],
)
def test_keywords_that_constrain_nothing_are_accepted(schema: dict[str, Any]) -> None:
    check_grammar(StructuredOutput(json=schema))


@pytest.mark.parametrize(
    "name", ["date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
)
def test_a_format_that_is_known_is_kept(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="Unsatisfiable schema"):
        check_grammar(StructuredOutput(json={"type": "string", "format": name, "enum": ["no such thing"]}))


def test_one_of_can_be_asked_for_as_any_of() -> None:
    branches = [{"pattern": "a"}, {"maxLength": 3}]
    check_grammar(StructuredOutput(json={"items": {"oneOf": branches}}, one_of_as_any_of=True))
    both = {"anyOf": [{"minLength": 2}], "oneOf": branches, "allOf": [{"type": "string"}]}
    check_grammar(StructuredOutput(json=both, one_of_as_any_of=True))


@pytest.mark.parametrize(
    ("structured", "reason"),
    [
        (StructuredOutput(regex="a("), r"^The regex cannot be used: unclosed group\.$"),
        (
            StructuredOutput(regex="(?=a)\nb"),
            r"^The regex cannot be used: look-around, including look-ahead and look-behind, is not supported\.$",
        ),
        (StructuredOutput(grammar="start: other"), r'The grammar cannot be used: .*unknown name: "other"'),
    ],
)
def test_a_wrong_regex_or_grammar_is_refused_with_the_reason(structured: StructuredOutput, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        check_grammar(structured)


@pytest.mark.parametrize(
    "structured",
    [
        StructuredOutput(json={"type": "object", "properties": {"a": {"enum": [1, None, "é"]}}}),
        StructuredOutput(json='{"type": "string", "pattern": "^[a-z]+$"}'),
        StructuredOutput(json_object=True),
        StructuredOutput(regex="[0-9]{4}-[0-9]{2}"),
        StructuredOutput(choice=['"', "\\", "\n", "é", "/a/"]),
        StructuredOutput(grammar='start: "a" | "b" start'),
    ],
)
def test_what_can_be_compiled_is_accepted(structured: StructuredOutput) -> None:
    check_grammar(structured)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "structured output has no kind; give exactly one of json, json_object, regex, choice, grammar"),
        ({"regex": "a", "choice": ["b"]}, "structured output has regex and choice; give exactly one"),
        ({"json": "{"}, "json is no JSON schema"),
        ({"json": "[]"}, "json is list; it must be a JSON schema"),
        ({"choice": []}, "choice is \\[\\]; it must list at least one"),
        ({"choice": "ab"}, "choice is 'ab'; it must list"),
        ({"regex": ""}, "regex is ''; it must be a non-empty string"),
        ({"json_object": "yes"}, "json_object is 'yes'; it must be True or False"),
        ({"regex": "a", "any_whitespace": None}, "any_whitespace is None; it must be True or False"),
    ],
)
def test_a_structured_output_without_sense_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidParamsError, match=reason):
        StructuredOutput(**fields)


LEVELS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "items": lambda inner: {"items": inner},
    "properties": lambda inner: {"type": "object", "properties": {"a": inner}},
    "branches": lambda inner: {"anyOf": [inner, {"type": "null"}]},
}


@pytest.mark.parametrize("kind", LEVELS)
def test_a_schema_is_accepted_up_to_the_deepest_level_allowed(kind: str) -> None:
    schema: dict[str, Any] = {"type": "string"}
    num_levels, added = 1, 1 if kind == "items" else 2
    while num_levels + added <= MAX_LEVELS:
        schema, num_levels = LEVELS[kind](schema), num_levels + added
    check_grammar(StructuredOutput(json=schema))
    deeper = LEVELS[kind](schema)
    for given in (deeper, json.dumps(deeper)):
        with pytest.raises(InvalidRequestError, match=f"nested {num_levels + added} levels deep; {MAX_LEVELS} are"):
            StructuredOutput(json=given)


def test_a_schema_keeps_its_order_as_text() -> None:
    structured = StructuredOutput(json={"properties": {"b": {}, "a": {"const": "é"}}})
    assert structured.json == '{"properties": {"b": {}, "a": {"const": "é"}}}'
    assert StructuredOutput(json=structured.json) == structured


def test_ignore_eos_is_refused_with_a_structured_output() -> None:
    with pytest.raises(InvalidParamsError, match="ignore_eos is given with a structured output"):
        SamplingParams(ignore_eos=True, structured=StructuredOutput(json_object=True))


def test_without_llguidance_a_grammar_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "llguidance":
            raise ImportError(name)
        return original(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InvalidRequestError, match="needs the package llguidance, which is not installed here"):
        check_grammar(StructuredOutput(regex="a"))
