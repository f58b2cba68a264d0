"""Reads and writes the JSON of a model's calls; any error in it is a MalformedCall."""

from __future__ import annotations

import json
from typing import Any

from workers.tool_calls.forms import MalformedCall


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse)


def whole_json(text: str) -> Any:
    """Read one value with nothing but white space around it. Raise MalformedCall."""
    value, rest = first_json(text.strip())
    if rest.strip():
        raise MalformedCall
    return value


def first_json(text: str) -> tuple[Any, str]:
    """Read one value at the beginning; return it and the rest. Raise MalformedCall."""
    try:
        value, end = _decoder.raw_decode(text)
    except (ValueError, RecursionError):
        raise MalformedCall from None
    return value, text[end:]


def as_json(arguments: dict[str, Any]) -> str:
    """Write arguments as JSON that every reader accepts: no NaN, no lone surrogate, no unlimited nesting."""
    try:
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        written.encode()
    except (ValueError, RecursionError):
        raise MalformedCall from None
    return written
