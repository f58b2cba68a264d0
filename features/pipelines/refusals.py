"""A wrong definition as one sentence: its place, what is allowed, what was given. Knows no rule of its own."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from jobs.errors import InputError

_PLACED = re.compile(r"(steps\.\d+(?:\.[a-z_]+)+): ")
_ALLOWED = {
    "missing": "it is missing; give it",
    "string_type": "give a text",
    "int_type": "give a whole number",
    "dict_type": "give a mapping of fields",
    "model_type": "give a mapping of fields",
    "list_type": "give a list",
    "tuple_type": "give a list",
    "extra_forbidden": "there is no such field; remove it",
    "too_short": "give at least {min_length}",
    "too_long": "give at most {max_length}",
    "string_too_short": "it is empty",
    "string_too_long": "give at most {max_length:,} characters",
    "greater_than_equal": "give {ge:,} or more",
    "less_than_equal": "give {le:,} or less",
}
"""By what pydantic calls it."""
_SHOWS_NOTHING = ("missing", "value_error", "extra_forbidden", "string_too_short", "too_short", "too_long")


def refusal(error: ValidationError) -> InputError:
    """Return what to raise for the first thing that is wrong."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    message = _sentence(first)
    given = "" if first["type"] in _SHOWS_NOTHING else f" (given: {repr(first.get('input'))[:80]})"
    where = f"{place}: " if place else ""
    named = _PLACED.match(message)  # where it takes several steps to see it
    param = place or (named[1] if named else "steps")
    return InputError(f"{where}{message}{given}", param=param, code="invalid_pipeline")


def _sentence(found: Any) -> str:
    allowed = _ALLOWED.get(found["type"])
    if allowed is not None:
        return allowed.format(**found.get("ctx", {}))
    return str(found["msg"]).removeprefix("Value error, ").replace("Input should be", "give")
