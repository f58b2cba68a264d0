"""Calls in Qwen3-Coder's tags: their reader and the grammar of their arguments.

Values are plain text between tags, so that only the function's schema tells the number 5 from the text "5".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from workers.tool_calls.argument_schemas import (
    ANNOTATIONS,
    DEFINITIONS,
    Argument,
    arguments_of,
    choices_of,
    has_kind,
    json_rule,
    kinds_of,
    not_kept,
    resolved,
    value_schemas,
)
from workers.tool_calls.forms import MalformedCall
from workers.tool_calls.json_texts import first_json, whole_json

_FUNCTION = re.compile(r"(?:<tool_call>\s*)?<function=([^>\n]+)>\s*")
_FUNCTION_END = re.compile(r"</function>(?:\s*</tool_call>)?")
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>")
_PARAMETER_END = re.compile(r"</parameter>\s*")
_MARKS = ("<tool_call>", "</tool_call>", "<function=")
_WORDS = {"True": True, "False": False, "None": None}
"""The way the chat template itself writes these values in past calls."""

_OF_CHOICES = frozenset({"type", "enum", "const"})
_OF_TEXTS = frozenset({"type", "minLength", "maxLength"})

# --- reading ---------------------------------------------------------------------------------------------------------


def read_xml(text: str, schemas: Mapping[str, Mapping[str, Any]]) -> tuple[str, list[Any]]:
    """Return the text beside the calls, and each call with `name` and `arguments`. Raise MalformedCall.

    `schemas` are the functions' parameters by name.
    """
    content, calls, position = "", [], 0
    while (start := _FUNCTION.search(text, position)) is not None:
        content += text[position : start.start()]
        arguments, position = _read_arguments(text, start.end(), value_schemas(schemas.get(start[1].strip(), {})))
        calls.append({"name": start[1].strip(), "arguments": arguments})
    content += text[position:]
    if any(mark in content for mark in _MARKS):
        raise MalformedCall
    return content, calls


def _read_arguments(text: str, position: int, schemas: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Any], int]:
    """Read parameters from `position` to the call's end; return them and the position after it."""
    arguments: dict[str, Any] = {}
    while (start := _PARAMETER.match(text, position)) is not None:
        name = start[1].strip()
        if name in arguments:
            raise MalformedCall
        arguments[name], position = _read_value(text, start.end(), schemas.get(name, {}))
    end = _FUNCTION_END.match(text, position)
    if end is None:
        raise MalformedCall
    return arguments, end.end()


def _read_value(text: str, position: int, schema: Mapping[str, Any]) -> tuple[Any, int]:
    kinds = kinds_of(schema)
    if kinds is not None and "string" not in kinds:
        parsed = _read_json(text[position:])  # texts within it may hold the tag that ends the parameter
        if parsed is not None:
            value, length = parsed
            return value, position + length
    end = _PARAMETER_END.search(text, position)
    if end is None:
        raise MalformedCall
    written = text[position : end.start()].removeprefix("\n").removesuffix("\n")
    return _typed(written, schema, kinds), end.end()


def _read_json(text: str) -> tuple[Any, int] | None:
    """Read a JSON value and the tag after it; return the value and their length, or None if they are not there."""
    try:
        value, rest = first_json(text.lstrip())
    except MalformedCall:
        return None
    end = _PARAMETER_END.match(rest.lstrip())
    return None if end is None else (value, len(text) - len(rest.lstrip()) + end.end())


def _typed(written: str, schema: Mapping[str, Any], kinds: frozenset[str] | None) -> Any:
    """Return the value of a text, or the text itself if the schema allows texts and not that value."""
    for choice in choices_of(schema) or ():
        if written == _as_text(choice):
            return choice
    if kinds is not None and kinds <= {"string"}:
        return written
    try:
        value = _WORDS[written] if written in _WORDS else whole_json(written)
    except MalformedCall:
        return written
    is_text = kinds is not None and "string" in kinds and not has_kind(value, kinds)
    return written if is_text else value


# --- writing ---------------------------------------------------------------------------------------------------------


def xml_arguments(rule: str, function: Mapping[str, Any]) -> list[str]:
    """Return the rules of a function's arguments, in the schema's order. Raise BodyError."""
    arguments = arguments_of(function)
    parts = [f"{rule}_{index}{'' if argument.is_required else '?'}" for index, argument in enumerate(arguments)]
    rules = [f"{rule}: {' '.join(parts)}" if parts else f'{rule}: ""']
    for index, argument in enumerate(arguments):
        start = json.dumps(f"<parameter={argument.name}>\n")
        rules.append(f"{rule}_{index}: {start} {rule}_{index}_value")
        rules += _value_rules(f"{rule}_{index}_value", argument, function)
    return rules


def _value_rules(rule: str, argument: Argument, function: Mapping[str, Any]) -> list[str]:
    """Return the rules of a value and the tag after it."""
    end = json.dumps("\n</parameter>\n")
    kinds = kinds_of(argument.schema)
    if kinds is not None and "string" not in kinds:
        return [f"{rule}: {json_rule(argument.schema)} {end}"]
    choices, limits = choices_of(argument.schema), _text_limits(argument, kinds, function)
    if choices is not None:
        return [f"{rule}: ({' | '.join(json.dumps(_as_text(choice)) for choice in choices)}) {end}"]
    terminal = rule.upper()
    # The rule ends at the first end tag, so the text must not contain one: the reader would stop there.
    return [f"{rule}[suffix={end}]: {terminal}", rf"{terminal}: /(?s:.{limits})/ & ~/(?s:.*<\/parameter>.*)/"]


def _text_limits(argument: Argument, kinds: frozenset[str] | None, function: Mapping[str, Any]) -> str:
    """Return the repetition of a text's characters as a regex. Raise BodyError for what a text cannot satisfy."""
    schema, choices = resolved(argument.schema), choices_of(argument.schema)
    allowed = _OF_TEXTS if choices is None and kinds == frozenset({"string"}) else _OF_CHOICES
    excess = schema.keys() - allowed
    if "$ref" in argument.schema:
        excess |= argument.schema.keys() - {"$ref"}
    if "format" in excess:
        excess -= {"allOf"}  # patterns derived from a format, which the user may not know
    if excess := excess - ANNOTATIONS - DEFINITIONS:
        raise not_kept(function, f"{', '.join(sorted(excess))} for {argument.name}, which may be a text")
    if any("</parameter>" in _as_text(choice) for choice in choices or ()):
        raise not_kept(function, f"</parameter> in a value of {argument.name}")
    low, high = schema.get("minLength", 0), schema.get("maxLength", "")
    if type(low) is not int or (high and type(high) is not int):
        raise not_kept(function, f"minLength {low!r} and maxLength {high!r} for {argument.name}")
    return f"{{{low},{high}}}"


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
