"""Tests of keywords without any valid answer, refused with their place; keywords that workers may know are accepted."""

from __future__ import annotations

from typing import Any

import pytest

from features.pipelines.rows.outputs.schema_keywords import check_keywords
from jobs.errors import InputError


def of(**part: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": part}}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (of(pattern="("), "at $.properties.a.pattern, '(' is not a regular expression: missing )"),
        (of(pattern="a)"), "unbalanced parenthesis"),
        (of(pattern="[a"), "unterminated character set"),
        (of(pattern=5), "it must be a regular expression, as text"),
        (of(minimum=5, maximum=1), "at $.properties.a.minimum, it is 5, and maximum is 1: no value fits"),
        (of(items={"minLength": 3, "maxLength": 2}), "at $.properties.a.items.minLength"),
        (of(anyOf=[{}, {"minItems": 2, "maxItems": 1}]), "at $.properties.a.anyOf[1].minItems"),
        (of() | {"required": "a"}, "at $.required, it must be a list of names of properties"),
        (
            of() | {"required": ["b"], "additionalProperties": False},
            "at $.required, 'b' is not a property, and no others",
        ),
        (of() | {"$defs": {"x": {"required": [1]}}}, "at $.$defs.x.required"),
    ],
)
def test_what_leaves_no_answer_is_refused_with_its_place(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        check_keywords(schema)
    assert said in refused.value.message


@pytest.mark.parametrize(
    "schema",
    [
        of(pattern=r"\\p{L}+"),
        of(pattern="^[a-z]{3}$"),
        of(minimum=1, maximum=1),
        of(minimum="1"),
        of() | {"required": ["b"]},
        {"properties": [], "anyOf": {}},
        {"type": "object", "properties": {"required": {"type": "string"}, "pattern": {"type": "string"}}},
    ],
)
def test_what_a_worker_may_know_is_let_through(schema: dict[str, Any]) -> None:
    check_keywords(schema)


def test_a_schema_without_an_end_is_not_followed_for_ever() -> None:
    schema: dict[str, Any] = {}
    schema["items"] = schema
    check_keywords(schema)
