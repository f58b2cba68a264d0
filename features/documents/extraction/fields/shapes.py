"""JSON schemas of answers, rebuilt from leaves: plain, or with a quote for each value.

Every leaf may be null and every property is required: missing values are stated, not left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from features.documents.extraction.fields.allowed import value_schema
from features.documents.extraction.fields.leaf import Leaf, LeafType
from features.documents.extraction.fields.numbers import LARGEST
from features.documents.extraction.fields.paths import ITEM, Path

MAX_QUOTE_CHARACTERS = 300
"""No value needs a longer quote, and a model that does not stop would fill its tokens with it."""

_LARGEST_ASKED = LARGEST - 1
"""A longer number is unreadable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """An object or array around leaves."""

    description: str = ""
    max_items: int | None = None


def record_schema(leaves: Sequence[Leaf], containers: Mapping[Path, Container]) -> dict[str, Any]:
    """Return the schema of a record's fields: as given, but each may be null."""
    return _shape((), leaves, containers, lambda leaf: _or_null(_value_schema(leaf)))


def list_schema(array: Path, leaves: Sequence[Leaf], containers: Mapping[Path, Container]) -> dict[str, Any]:
    """Return the schema of an array entered by a person: values in an item may be null, but not a whole item."""
    inside = [leaf for leaf in leaves if leaf.path[: len(array)] == array]
    return _shape(array, inside, containers, _given_schema, item_schema=_with_value)


def plain_schema(
    leaves: Sequence[Leaf], containers: Mapping[Path, Container], *, max_characters: int | None = None
) -> dict[str, Any]:
    """Return the schema of an answer whose leaves are values or null; `max_characters` limits its texts."""
    return _shape((), leaves, containers, lambda leaf: _or_null(_asked_schema(leaf, max_characters)))


def quoted_schema(
    leaves: Sequence[Leaf], containers: Mapping[Path, Container], *, max_characters: int | None = None
) -> dict[str, Any]:
    """Return the schema of an answer whose leaves are `{value, quote}` or null; `max_characters` limits its texts."""
    return _shape((), leaves, containers, lambda leaf: _or_null(_quoted(leaf, max_characters)))


def _shape(
    path: Path,
    leaves: Sequence[Leaf],
    containers: Mapping[Path, Container],
    leaf_schema: Callable[[Leaf], dict[str, Any]],
    *,
    item_schema: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> dict[str, Any]:
    if leaves[0].path == path:
        return leaf_schema(leaves[0])
    parts = dict.fromkeys(leaf.path[len(path)] for leaf in leaves)
    of_part = {part: [leaf for leaf in leaves if leaf.path[len(path)] == part] for part in parts}
    inner = {
        part: _shape((*path, part), inside, containers, leaf_schema, item_schema=item_schema)
        for part, inside in of_part.items()
    }
    if ITEM in inner:
        max_items = containers[path].max_items
        return {"type": "array", "items": item_schema(inner[ITEM])} | (
            {} if max_items is None else {"maxItems": max_items}
        )
    return {"type": "object", "properties": inner, "required": list(inner), "additionalProperties": False}


def _asked_schema(leaf: Leaf, max_characters: int | None) -> dict[str, Any]:
    """Return the schema of an answered value: numbers are bounded, and so are texts, to stop runaway answers."""
    schema = _value_schema(leaf)
    if max_characters is not None and _is_free_text(leaf):
        longest = max(max_characters, schema.get("minLength", 0))
        return schema | {"maxLength": min(longest, schema.get("maxLength", longest))}
    if leaf.enum is not None or leaf.type not in (LeafType.INTEGER, LeafType.NUMBER):
        return schema
    has_least = "minimum" in schema or "exclusiveMinimum" in schema
    has_most = "maximum" in schema or "exclusiveMaximum" in schema
    least = {} if has_least else {"minimum": -_LARGEST_ASKED}
    return schema | least | ({} if has_most else {"maximum": _LARGEST_ASKED})


def _value_schema(leaf: Leaf) -> dict[str, Any]:
    return {"enum": list(leaf.enum)} if leaf.enum is not None else dict(leaf.schema)


def _is_free_text(leaf: Leaf) -> bool:
    is_text = leaf.type is LeafType.STRING and leaf.enum is None
    return is_text and not {"const", "format", "pattern"} & leaf.schema.keys()


def _given_schema(leaf: Leaf) -> dict[str, Any]:
    is_item = leaf.path[-1] == ITEM
    return value_schema(leaf) if is_item else _or_null(value_schema(leaf))


def _with_value(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an item that has at least one value."""
    if schema.get("type") == "object":
        return schema | {"not": _without_value(schema)}
    return schema | ({"minItems": 1} if schema.get("type") == "array" else {})


def _without_value(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that matches values without content allowed by another: empty texts, unless they are choices."""
    if schema.get("type") == "object":
        return {"properties": {name: _without_value(inner) for name, inner in schema["properties"].items()}}
    if schema.get("type") == "array":
        return {"maxItems": 0}
    choices = schema.get("anyOf", [schema])[0].get("enum", ())
    return {"enum": [None] if "" in choices else [None, ""]}


def _quoted(leaf: Leaf, max_characters: int | None) -> dict[str, Any]:
    longest = MAX_QUOTE_CHARACTERS if max_characters is None else min(max_characters, MAX_QUOTE_CHARACTERS)
    properties = {"value": _asked_schema(leaf, max_characters), "quote": {"type": "string", "maxLength": longest}}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    if "enum" in schema and set(schema) == {"enum"}:
        return {"enum": [*schema["enum"], None]}
    return {"anyOf": [schema, {"type": "null"}]}
