"""Values that a person may enter for a leaf, as a JSON schema and in words.

For problems of a model's answers see `features.documents.extraction.passes.validators`.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import jsonschema_rs
import orjson

from features.documents.extraction.fields.leaf import Leaf, LeafType
from features.documents.extraction.fields.paths import ITEM

_TYPES: dict[LeafType, tuple[type, ...]] = {
    LeafType.STRING: (str,),
    LeafType.NUMBER: (int, float),
    LeafType.INTEGER: (int,),
    LeafType.BOOLEAN: (bool,),
}
_NAMES = {
    LeafType.STRING: "a text",
    LeafType.NUMBER: "a number",
    LeafType.INTEGER: "a whole number",
    LeafType.BOOLEAN: "true or false",
}
_BOUNDS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "above {}",
    "exclusiveMaximum": "below {}",
    "multipleOf": "a multiple of {}",
    "minLength": "of at least {}",
    "maxLength": "of at most {}",
    "pattern": "in the form {}",
    "format": "written as {}",
}
_PATTERNS = jsonschema_rs.FancyRegexOptions(size_limit=2**25)
"""Enough for a text of 255 letters of any script; the library's own limit is not."""

_FORMATS = {"date": "a day like 2026-11-23", "date-time": "a moment like 2026-11-23T12:00:00Z"}


def value_schema(leaf: Leaf) -> dict[str, Any]:
    """Return the JSON schema of a leaf's value other than null, including its choices.

    An item of a list must not be an empty text, unless that is one of its choices.
    """
    if leaf.enum is not None:
        return dict(leaf.schema) | {"enum": list(leaf.enum)}
    is_text_item = leaf.type is LeafType.STRING and leaf.path[-1] == ITEM
    least = {"minLength": max(1, leaf.schema.get("minLength", 0))} if is_text_item else {}
    return dict(leaf.schema) | least


def problem_of(leaf: Leaf, value: Any) -> str | None:
    """Return why a leaf cannot have a value other than null, with the allowed form; None if it can."""
    is_of_type = isinstance(value, _TYPES[leaf.type]) and isinstance(value, bool) == (leaf.type is LeafType.BOOLEAN)
    validator = _validator(orjson.dumps(value_schema(leaf))) if is_of_type else None
    if is_of_type and validator is None:
        return "it has a pattern that is too large to be checked; extract with a schema whose pattern repeats less"
    return None if validator is not None and validator.is_valid(value) else f"it must be {_in_words(leaf)}"


@lru_cache(maxsize=4)
def _validator(schema: bytes) -> Any:
    """Return the validator of a schema, or None if its pattern is too large.

    Cached for the values of a list, of which there may be thousands: a long pattern takes 10 to 60 ms. Few are kept,
    since one like `\\p{L}{0,230}` takes 15 MB.
    """
    try:
        return jsonschema_rs.validator_for(schema.decode(), validate_formats=True, pattern_options=_PATTERNS)
    except jsonschema_rs.ValidationError:
        return None


def _in_words(leaf: Leaf) -> str:
    if leaf.enum is not None:
        return f"one of {', '.join(json.dumps(value, ensure_ascii=False) for value in leaf.enum)}"
    schema = value_schema(leaf)
    bounds = [template.format(_bound(name, schema[name])) for name, template in _BOUNDS.items() if name in schema]
    return ", ".join([_NAMES[leaf.type], *bounds])


def _bound(name: str, value: Any) -> str:
    if name in ("minLength", "maxLength"):
        return "1 character" if value == 1 else f"{value} characters"
    return str(_FORMATS.get(value, value)) if name == "format" else str(value)
