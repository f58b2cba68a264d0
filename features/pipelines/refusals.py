"""Turns pydantic's errors of a definition into one sentence: the place, what is allowed, the value."""

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
"""By pydantic's type of the error."""
_SHOWS_NOTHING = ("missing", "value_error", "extra_forbidden", "string_too_short", "too_short", "too_long")


def refusal(error: ValidationError) -> InputError:
    """Return the error to raise for the first problem."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    message = _sentence(first)
    value = "" if first["type"] in _SHOWS_NOTHING else f" (given: {repr(first.get('input'))[:80]})"
    where = f"{place}: " if place else ""
    named = _PLACED.match(message)  # errors that concern several steps name their place in the message
    param = place or (named[1] if named else "steps")
    return InputError(f"{where}{message}{value}", param=param, code="invalid_pipeline")


def _sentence(problem: Any) -> str:
    allowed = _ALLOWED.get(problem["type"])
    if allowed is not None:
        return allowed.format(**problem.get("ctx", {}))
    return str(problem["msg"]).removeprefix("Value error, ").replace("Input should be", "give")
