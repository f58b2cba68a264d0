"""What lines may say of their output's structure: each form read, each mistake named."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.lines.bodies import CHAT_ENDPOINT, COMPLETION_ENDPOINT, parse_body
from jobs.lines.body_checks import BodyError
from jobs.lines.body_structure import Structure

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def structure(**fields: Any) -> Structure | None:
    return parse_body(CHAT_ENDPOINT, {"messages": [{"role": "user", "content": "x"}], **fields}).structure


@pytest.mark.parametrize(
    ("fields", "param", "expected"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
            "response_format.json_schema.schema",
            {"json": SCHEMA},
        ),
        ({"response_format": {"type": "json_object"}}, "response_format", {"json_object": True}),
        ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs.json", {"json": SCHEMA}),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex", {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "structured_outputs.choice", {"choice": ("a", "b")}),
        ({"structured_outputs": {"grammar": "start: x"}}, "structured_outputs.grammar", {"grammar": "start: x"}),
        (
            {"structured_outputs": {"json_object": True, "json": None, "disable_any_whitespace": False}},
            "structured_outputs.json_object",
            {"json_object": True, "any_whitespace": True},
        ),
        ({"guided_json": '{"type": "object"}'}, "guided_json", {"json": '{"type": "object"}'}),
        ({"guided_regex": "a"}, "guided_regex", {"regex": "a"}),
        ({"guided_choice": ["a"]}, "guided_choice", {"choice": ("a",)}),
        ({"guided_grammar": "start: x"}, "guided_grammar", {"grammar": "start: x"}),
    ],
)
def test_each_form_of_structure_is_read(fields: dict[str, Any], param: str, expected: dict[str, Any]) -> None:
    assert structure(**fields) == Structure(param=param, fields=expected)


def test_completions_take_structures_too() -> None:
    body = {"prompt": "x", "response_format": {"type": "json_object"}}
    assert parse_body(COMPLETION_ENDPOINT, body).structure == Structure(
        param="response_format", fields={"json_object": True}
    )


def test_strict_and_description_change_nothing() -> None:
    wanted = {"name": "n", "description": "d", "strict": False, "schema": SCHEMA}
    found = structure(response_format={"type": "json_schema", "json_schema": wanted})
    assert found is not None
    assert found.fields == {"json": SCHEMA}


def test_one_of_may_be_taken_as_any_of_in_every_form_of_schema() -> None:
    wanted = {"json": SCHEMA, "one_of_as_any_of": True}
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    forms: list[dict[str, Any]] = [
        {"guided_json": SCHEMA},
        {"structured_outputs": {"json": SCHEMA}},
        {"response_format": schema},
    ]
    for form in forms:
        found = structure(one_of_as_any_of=True, **form)
        assert found is not None
        assert found.fields == wanted
    assert structure(one_of_as_any_of=True, guided_regex="a") == structure(guided_regex="a")
    assert structure(one_of_as_any_of=True) is None


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "text"}}, {"guided_json": None}])
def test_no_structure_is_none(fields: dict[str, Any]) -> None:
    assert structure(**fields) is None


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"response_format": "json"}, "response_format", "invalid_type"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "invalid_value"),
        ({"response_format": {"type": "text", "x": 1}}, "response_format.x", "unknown_parameter"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "invalid_type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            "response_format.json_schema.name",
            "invalid_type",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
            "invalid_type",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "invalid_value"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "invalid_value"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "unsupported_parameter"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "invalid_type"),
        ({"guided_regex": ""}, "guided_regex", "invalid_value"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "invalid_value"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "invalid_value"),
        ({"guided_json": SCHEMA, "one_of_as_any_of": "yes"}, "one_of_as_any_of", "invalid_type"),
    ],
)
def test_a_wrong_structure_is_refused_by_name(fields: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(BodyError) as found:
        structure(**fields)
    assert (found.value.param, found.value.code) == (param, code)
