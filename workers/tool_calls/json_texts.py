"""JSON in a model's output: read it, write it again; whatever is wrong with it is a malformed call."""

from __future__ import annotations

import json
from typing import Any

from workers.tool_calls.forms import MalformedCall


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse)


def whole_json(text: str) -> Any:
    """Read one value with nothing but white space beside it. Raises MalformedCall."""
    found, rest = first_json(text.strip())
    if rest.strip():
        raise MalformedCall
    return found


def first_json(text: str) -> tuple[Any, str]:
    """Read one value at the beginning; return it and the rest. Raises MalformedCall."""
    try:
        found, end = _decoder.raw_decode(text)
    except (ValueError, RecursionError):
        raise MalformedCall from None
    return found, text[end:]


def as_json(arguments: dict[str, Any]) -> str:
    """Write arguments as JSON that every reader takes: no NaN, no half of a surrogate pair, no bottomless nesting."""
    try:
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        written.encode()
    except (ValueError, RecursionError):
        raise MalformedCall from None
    return written
