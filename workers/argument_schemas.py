"""What a function's JSON schema says of single arguments: for forms that write them one by one, not as one object."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jobs.body_checks import BodyError

ANNOTATIONS: Final = frozenset({"title", "description", "default", "examples", "deprecated", "$comment"})
"""Keywords that allow every value."""

DEFINITIONS: Final = frozenset({"$defs", "definitions"})
_OF_OBJECTS: Final = ANNOTATIONS | {"$schema", "type", "properties", "required", "additionalProperties"} | DEFINITIONS
_REFERENCE: Final = re.compile(r"#/(\$defs|definitions)/([^/~%]+)")
_NAME: Final = re.compile(r"[\w.-]+")
_KINDS: Final = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of a function; `schema` is complete in itself, with the definitions it may refer to."""

    name: str
    schema: Mapping[str, Any]
    is_required: bool


def json_rule(schema: Mapping[str, Any]) -> str:
    """Return the grammar of JSON that keeps a schema, without white space between its tokens."""
    return f"%json {json.dumps({'x-guidance': {'whitespace_flexible': False}, **schema}, ensure_ascii=False)}"


def arguments_of(function: Mapping[str, Any]) -> list[Argument]:
    """Return the arguments that a function's schema names, in order; others, which it may allow, are left out.

    Raises BodyError where it says more than can be kept while they are written one by one.
    """
    schema = function.get("parameters") or {}
    values, required = value_schemas(schema), schema.get("required", [])
    if excess := sorted(schema.keys() - _OF_OBJECTS):
        raise not_kept(function, ", ".join(excess))
    if (
        schema.get("type", "object") != "object"
        or type(required) is not list
        or any(x not in [*values] for x in required)
    ):
        raise not_kept(function, "parameters that are no object with all required properties")
    for name in values:
        if not _NAME.fullmatch(name):
            raise not_kept(function, f"the name {json.dumps(name)}")
    for reference in _references(schema):
        if not _REFERENCE.fullmatch(reference):
            raise not_kept(function, f"the reference {reference}")
    return [Argument(name=name, schema=one, is_required=name in required) for name, one in values.items()]


def value_schemas(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the schemas of an object's properties, each complete in itself."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {name: _within(schema, one) for name, one in properties.items()}


def not_kept(function: Mapping[str, Any], what: str) -> BodyError:
    """Return the error for a schema that a required call cannot keep in a form without one JSON object."""
    message = (
        f"the function {function['name']} has {what}, which a required call in this model's form cannot keep; change "
        "its parameters, or set tool_choice to auto"
    )
    return BodyError("tools", message, code="unsupported_structure")


def resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow a schema's own reference to the definitions beside it; write a choice of mere types as one type."""
    seen = set()
    while isinstance(reference := schema.get("$ref"), str) and reference not in seen:
        seen.add(reference)
        place = _REFERENCE.fullmatch(reference)
        definitions = schema.get(place[1]) if place else None
        target = definitions.get(place[2]) if place and isinstance(definitions, Mapping) else None
        if not isinstance(target, Mapping):
            break
        schema = _within(schema, target)
    branches = schema.get("anyOf")
    if "type" in schema or not isinstance(branches, list) or not all(map(_is_mere_type, branches)):
        return schema
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    return {**rest, "type": [kind for branch in branches for kind in _types(branch)]}


def kinds_of(schema: Mapping[str, Any], *, max_depth: int = 8) -> frozenset[str] | None:
    """Return the JSON types of the values that a schema allows, or more; None where it may allow all."""
    if max_depth == 0:  # a definition may refer to itself
        return None
    schema = resolved(schema)
    choices = choices_of(schema)
    if choices is not None:
        return frozenset(map(_kind_of, choices))
    if "type" in schema:
        return _types(schema)
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(key), list):
            kinds = [kinds_of(_within(schema, branch), max_depth=max_depth - 1) for branch in branches]
            return None if None in kinds else frozenset[str]().union(*filter(None, kinds))
    return None


def choices_of(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the values that a schema lists, None where it lists none."""
    schema = resolved(schema)
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(listed, list):
        return None
    return [value for value in listed if "type" not in schema or has_kind(value, _types(schema))]


def has_kind(value: object, kinds: frozenset[str]) -> bool:
    """Tell whether a value is of one of these JSON types; every integer is a number."""
    kind = _kind_of(value)
    return kind in kinds or (kind == "integer" and "number" in kinds)


def _kind_of(value: object) -> str:
    return _KINDS.get(type(value), "null")


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    given = schema["type"]
    return frozenset(kind for kind in (given if isinstance(given, list) else [given]) if isinstance(kind, str))


def _is_mere_type(schema: object) -> bool:
    return isinstance(schema, Mapping) and "type" in schema and not schema.keys() - ANNOTATIONS - {"type"}


def _within(outer: Mapping[str, Any], schema: object) -> Mapping[str, Any]:
    """Return a schema with the definitions around it; `true` and `false` are written as objects."""
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
