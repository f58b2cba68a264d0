"""Tests of calls whose arguments are written one by one: reading their values, and schemas that cannot be enforced."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from engine.errors import InvalidRequestError
from engine.grammars.grammar import check_grammar
from engine.structured import MAX_LEVELS
from jobs.lines.body_checks import BodyError
from jobs.lines.body_tools import Choice, ToolUse
from workers.tool_calls.argument_schemas import kinds_of
from workers.tool_calls.forms import CallForm
from workers.tool_calls.output import CallReader
from workers.tool_calls.writing import constraint


def use(parameters: dict[str, Any], choice: Choice = Choice.AUTO) -> ToolUse:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    return ToolUse(offered=(tool,), callable=(tool,), choice=choice, is_parallel=True)


def arguments_in(form: CallForm, text: str, parameters: dict[str, Any] | None = None) -> Any:
    found = CallReader.of(form, use(parameters or {})).read(text)
    assert found is not None
    return json.loads(found[1][0].arguments)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("'a'", "a"),
        ('"it\'s"', "it's"),
        (r"'it\'s \"so\"'", 'it\'s "so"'),
        (r'"a\n\tb\\c\d"', "a\n\tb\\c\\d"),
        (r'"\u00e9\x41\U0001F600\ud83d\ude00\/"', "éA😀😀/"),
        ("'two\nlines'", "two\nlines"),
        ("''", ""),
        ("-7", -7),
        ("+2.5", 2.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("True", True),
        ("false", False),
        ("None", None),
        ("null", None),
        ("[1, [2,], 'x']", [1, [2], "x"]),
        ("{'k': {\"n\": None}, 'l': []}", {"k": {"n": None}, "l": []}),
    ],
)
def test_values_are_read_in_the_words_of_python_and_of_json(written: str, value: Any) -> None:
    assert arguments_in(CallForm.PYTHONIC, f"[f(a={written}, b=1)]") == {"a": value, "b": 1}


OPTIONAL_TEXT = {"anyOf": [{"type": "string"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("written", "schema", "value"),
    [
        ("5", {"type": "string"}, "5"),
        ("5", {"type": "integer"}, 5),
        ("5", {"type": ["string", "number"]}, 5),
        ("5", OPTIONAL_TEXT, "5"),
        ("None", OPTIONAL_TEXT, None),
        ("None", {"type": "string"}, "None"),
        ("True", {"type": "boolean"}, True),
        ("false", {"type": "boolean"}, False),
        ("five", {"type": "integer"}, "five"),
        ("5", {}, 5),
        ("five", {}, "five"),
        ("NaN", {}, "NaN"),
        ("5", {"enum": ["5", 5]}, "5"),
        ("5", {"enum": ["6", 5]}, 5),
        ("5", {"$ref": "#/$defs/text"}, "5"),
        ("5", {"$ref": "#/$defs/itself"}, 5),
        ("5", {"anyOf": [{"$ref": "#/$defs/loop"}]}, 5),
        ("\nx\n", {"type": "string"}, "\nx\n"),
        ('["</parameter>"]', {"type": "array"}, ["</parameter>"]),
        ("</function>", {"type": "string"}, "</function>"),
        ("", {"type": "string"}, ""),
    ],
)
def test_a_value_between_tags_is_of_the_kind_that_the_schema_allows(
    written: str, schema: dict[str, Any], value: Any
) -> None:
    definitions = {
        "text": {"type": "string"},
        "itself": {"$ref": "#/$defs/itself"},
        "loop": {"anyOf": [{"$ref": "#/$defs/loop"}]},
    }
    text = f"<tool_call>\n<function=f>\n<parameter=a>\n{written}\n</parameter>\n</function>\n</tool_call>"
    assert arguments_in(CallForm.XML, text, {"$defs": definitions, "properties": {"a": schema}}) == {"a": value}


def test_calls_may_share_a_pair_of_tags_or_have_none() -> None:
    reader = CallReader.of(CallForm.XML, use({}))
    for text in (
        "<tool_call><function=f></function><function=f></function></tool_call>",
        "<function=f></function>" * 2,
    ):
        found = reader.read(text)
        assert found is not None
        assert [call.arguments for call in found[1]] == ["{}", "{}"]


def test_a_definition_of_many_choices_that_are_itself_is_looked_at_once() -> None:
    endless = {"anyOf": [{"type": "string"}, *[{"$ref": "#/$defs/endless"}] * 1000]}
    schema = {"$ref": "#/$defs/endless", "$defs": {"endless": endless}}
    assert kinds_of(schema) == frozenset({"string"})


def test_the_types_of_every_definition_in_a_long_chain_count() -> None:
    chain = {f"a{index}": {"oneOf": [{"$ref": f"#/$defs/a{index + 1}"}, {"type": "null"}]} for index in range(5000)}
    definitions = {**chain, "a5000": {"enum": ["x", 1]}}
    assert kinds_of({"$ref": "#/$defs/a0", "$defs": definitions}) == frozenset({"null", "string", "integer"})


def test_a_value_listed_too_deep_to_be_written_leaves_the_output_as_text() -> None:
    value: Any = "x"
    for _ in range(990):
        value = [value]
    text = "<tool_call>\n<function=f>\n<parameter=a>\nhi\n</parameter>\n</function>\n</tool_call>"
    assert CallReader.of(CallForm.XML, use({"properties": {"a": {"enum": [value, "a"]}}})).read(text) is None


@pytest.mark.parametrize("form", [CallForm.PYTHONIC, CallForm.XML])
@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"anyOf": [{"type": "object"}]}, "the function f has anyOf, which a required call"),
        (
            {"type": "object", "minProperties": 1, "patternProperties": {}},
            "has minProperties, patternProperties, which",
        ),
        ({"type": "array"}, "has parameters that are not an object"),
        ({"properties": {}, "required": ["a"]}, "has parameters that are not an object with all required"),
        ({"properties": {"a": {}}, "required": [{}]}, "has parameters that are not an object with all required"),
        ({"properties": {"a": {}}, "required": 1}, "has parameters that are not an object with all required"),
        ({"properties": {"a b": {}}}, 'has the name "a b", which'),
        ({"properties": {"a": {"$ref": "#"}}}, "has the reference #, which"),
        ({"properties": {"a": {"items": [{"$ref": "#/properties/a"}]}}}, "has the reference #/properties/a, which"),
    ],
)
def test_what_arguments_one_by_one_cannot_keep_is_refused_in_a_required_call(
    form: CallForm, parameters: dict[str, Any], reason: str
) -> None:
    with pytest.raises(BodyError) as caught:
        constraint(form, use(parameters, Choice.REQUIRED), {})
    assert reason in caught.value.message
    assert caught.value.message.endswith("change its parameters, or set tool_choice to auto")
    assert (caught.value.param, caught.value.code) == ("tools", "unsupported_structure")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "string", "pattern": "^a$"}, "has pattern for a, which may be a text, which"),
        ({"type": "string", "format": "date"}, "has format for a, which may be a text, which"),
        ({"type": ["string", "integer"], "maxLength": 4}, "has maxLength for a, which"),
        ({"allOf": [{"type": "string"}]}, "has allOf for a, which"),
        ({"$ref": "#/$defs/text", "minLength": 1}, "has minLength for a, which"),
        ({"enum": ["</parameter>"]}, "has </parameter> in a value of a, which"),
        ({"type": "string", "minLength": "1"}, "has minLength '1' and maxLength '' for a, which"),
        (False, "has not for a, which"),
    ],
)
def test_what_a_text_between_tags_cannot_keep_is_refused_in_a_required_call(schema: Any, reason: str) -> None:
    parameters = {"$defs": {"text": {"type": "string"}}, "properties": {"a": schema}}
    with pytest.raises(BodyError) as caught:
        constraint(CallForm.XML, use(parameters, Choice.REQUIRED), {})
    assert reason in caught.value.message


@pytest.mark.parametrize("form", CallForm)
def test_parameters_nested_too_deeply_are_refused_with_the_depth_and_the_limit(form: CallForm) -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(BodyError, match=f"of the function f are nested 5003 levels deep; {MAX_LEVELS} are allowed"):
        constraint(form, use({"properties": {"a": schema}}, Choice.REQUIRED), {})


def test_a_function_whose_schema_cannot_be_read_is_its_own_lines_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid schema goes on to the compiler, which reports it; without llguidance nothing can."""
    written = constraint(CallForm.HERMES, use({"format": "date", "allOf": 5}, Choice.REQUIRED), {})
    assert written is not None
    with pytest.raises(InvalidRequestError, match="cannot be used"):
        check_grammar(written)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(BodyError, match="needs the package llguidance"):
        constraint(CallForm.HERMES, use({"format": "never-seen-before"}, Choice.REQUIRED), {})
