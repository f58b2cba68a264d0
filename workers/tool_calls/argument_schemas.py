"""The schemas of a function's single arguments, for forms that write them one by one instead of as one object."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jobs.lines.body_checks import BodyError

ANNOTATIONS = frozenset({"title", "description", "default", "examples", "deprecated", "$comment"})
"""Keywords that allow every value."""

DEFINITIONS = frozenset({"$defs", "definitions"})
_OF_OBJECTS = ANNOTATIONS | {"$schema", "type", "properties", "required", "additionalProperties"} | DEFINITIONS
_REFERENCE = re.compile(r"#/(\$defs|definitions)/([^/~%]+)")
_NAME = re.compile(r"[\w.-]+")
_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of a function."""

    name: str
    schema: Mapping[str, Any]
    """Self-contained, with the definitions it may refer to."""
    is_required: bool


def json_rule(schema: Mapping[str, Any]) -> str:
    """Return the grammar of JSON that matches a schema, without white space between its tokens."""
    return f"%json {json.dumps({'x-guidance': {'whitespace_flexible': False}, **schema}, ensure_ascii=False)}"


def arguments_of(function: Mapping[str, Any]) -> list[Argument]:
    """Return the arguments that a function's schema names, in order; others that it may allow are left out.

    Raise BodyError if it has constraints that cannot be enforced when arguments are written one by one.
    """
    schema = function.get("parameters") or {}
    values, required = value_schemas(schema), schema.get("required", [])
    if excess := sorted(schema.keys() - _OF_OBJECTS):
        raise not_kept(function, ", ".join(excess))
    if (
        schema.get("type", "object") != "object"
        or type(required) is not list
        or not all(isinstance(name, str) and name in values for name in required)
    ):
        raise not_kept(function, "parameters that are not an object with all required properties")
    for name in values:
        if not _NAME.fullmatch(name):
            raise not_kept(function, f"the name {json.dumps(name)}")
    for reference in _references(schema):
        if not _REFERENCE.fullmatch(reference):
            raise not_kept(function, f"the reference {reference}")
    return [Argument(name=name, schema=one, is_required=name in required) for name, one in values.items()]


def value_schemas(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the schemas of an object's properties, each self-contained."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {name: _within(schema, one) for name, one in properties.items()}


def not_kept(function: Mapping[str, Any], what: str) -> BodyError:
    """Return the error for a schema that cannot be enforced in a form without one JSON object."""
    message = (
        f"the function {function['name']} has {what}, which a required call in this model's form cannot keep; change "
        "its parameters, or set tool_choice to auto"
    )
    return BodyError("tools", message, code="unsupported_structure")


def resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow a schema's own reference to the definitions beside it; merge a choice of plain types into one `type`."""
    seen = set()
    while (target := _target(schema)) is not None and schema["$ref"] not in seen:
        seen.add(schema["$ref"])
        schema = target
    branches = schema.get("anyOf")
    if "type" in schema or not isinstance(branches, list) or not all(map(_is_mere_type, branches)):
        return schema
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    return {**rest, "type": [kind for branch in branches for kind in _types(branch)]}


def kinds_of(schema: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the JSON types that a schema allows, or a superset; None if it may allow all."""
    kinds: list[frozenset[str]] = []
    seen: set[str] = set()  # a definition may refer to itself, which adds no type
    left = [schema]
    while left:
        one = left.pop()
        if (target := _target(one)) is not None:
            if one["$ref"] not in seen:
                seen.add(one["$ref"])
                left.append(target)
        elif (choices := choices_of(one)) is not None:
            kinds.append(frozenset(map(_kind_of, choices)))
        elif "type" in one:
            kinds.append(_types(one))
        elif (branches := _branches(one)) is not None:
            left += [_within(one, branch) for branch in branches]
        else:
            return None
    return frozenset[str]().union(*kinds) if kinds else None


def choices_of(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the values that a schema lists; None if it lists none."""
    schema = resolved(schema)
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(listed, list):
        return None
    return [value for value in listed if "type" not in schema or has_kind(value, _types(schema))]


def has_kind(value: object, kinds: frozenset[str]) -> bool:
    """Tell whether a value has one of these JSON types; every integer is a number."""
    kind = _kind_of(value)
    return kind in kinds or (kind == "integer" and "number" in kinds)


def _target(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the definition that a schema refers to; None if it refers to none beside it."""
    reference = schema.get("$ref")
    match = _REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
    definitions = schema.get(match[1]) if match else None
    target = definitions.get(match[2]) if match and isinstance(definitions, Mapping) else None
    return _within(schema, target) if isinstance(target, Mapping) else None


def _branches(schema: Mapping[str, Any]) -> list[Any] | None:
    return next((schema[key] for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list)), None)


def _kind_of(value: object) -> str:
    return _KINDS.get(type(value), "null")


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    types = schema["type"]
    return frozenset(kind for kind in (types if isinstance(types, list) else [types]) if isinstance(kind, str))


def _is_mere_type(schema: object) -> bool:
    return isinstance(schema, Mapping) and "type" in schema and not schema.keys() - ANNOTATIONS - {"type"}


def _within(outer: Mapping[str, Any], schema: object) -> Mapping[str, Any]:
    """Return a schema with the definitions around it; `true` and `false` become objects."""
    if not isinstance(schema, Mapping):
        schema = {} if schema is True else {"not": {}}
    return {**{key: outer[key] for key in DEFINITIONS if key in outer}, **schema}


def _references(schema: object) -> Iterator[str]:
    left = [schema]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            if isinstance(reference := one.get("$ref"), str):
                yield reference
            left += one.values()
        elif isinstance(one, list):
            left += one
