"""Checks an answer's schema for keywords that no answer can satisfy or that are invalid, before a line is sent.

Only a worker can tell whether a schema can be enforced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from jobs.errors import InputError

_MAX_LEVELS = 64
_PAIRS = (
    ("minimum", "maximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
)
_MAPPINGS = ("properties", "$defs", "definitions")
_NEVER_GOOD = ("missing )", "unbalanced parenthesis", "unterminated character set", "nothing to repeat")
_LISTS = ("anyOf", "oneOf", "allOf")


def check_keywords(schema: Mapping[str, Any]) -> None:
    """Raise InputError with the place of the first wrong keyword."""
    for place, part in _parts(schema, "$", level=0):
        problem = _required(part) or _pattern(part) or _range(part)
        if problem is not None:
            name, reason = problem
            raise InputError(
                f"the schema cannot be used: at {place}.{name}, {reason}.", param="schema", code="invalid_schema"
            )


def _parts(schema: Any, place: str, *, level: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(schema, Mapping) or level > _MAX_LEVELS:
        return
    yield place, schema
    below = [(f"{place}.items", schema.get("items"))]
    for word in _MAPPINGS:
        named = schema.get(word)
        below += (
            [(f"{place}.{word}.{name}", part) for name, part in named.items()] if isinstance(named, Mapping) else []
        )
    for word in _LISTS:
        parts = schema.get(word)
        below += [(f"{place}.{word}[{at}]", part) for at, part in enumerate(parts)] if isinstance(parts, list) else []
    for where, part in below:
        yield from _parts(part, where, level=level + 1)


def _required(schema: Mapping[str, Any]) -> tuple[str, str] | None:
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        return "required", "it must be a list of names of properties"
    known = schema.get("properties")
    unknown = [name for name in required if isinstance(known, Mapping) and name not in known]
    if unknown and schema.get("additionalProperties") is False:
        return "required", f"{unknown[0][:80]!r} is not a property, and no others are allowed"
    return None


def _pattern(schema: Mapping[str, Any]) -> tuple[str, str] | None:
    pattern = schema.get("pattern", "")
    if not isinstance(pattern, str):
        return "pattern", "it must be a regular expression, as text"
    try:
        re.compile(pattern)
    except re.error as error:
        # Other errors may concern syntax that workers support and this library does not, such as \\p{L}.
        if error.msg.startswith(_NEVER_GOOD):
            return "pattern", f"{pattern[:80]!r} is not a regular expression: {error}"
    return None


def _range(schema: Mapping[str, Any]) -> tuple[str, str] | None:
    for low, high in _PAIRS:
        least, most = schema.get(low), schema.get(high)
        if isinstance(least, (int, float)) and isinstance(most, (int, float)) and least > most:
            return low, f"it is {least:g}, and {high} is {most:g}: no value fits"
    return None
