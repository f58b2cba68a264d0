"""Rows as JSON, for prompts, outputs and transfer: integers keep all digits, and times all parts.

Values without a JSON form are written in their usual text form, or refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, time, timedelta
from decimal import Decimal
from typing import Any

import orjson

from tokenmill.arrow_scalars import is_finer_than_python, text_of

MAX_DIGITS = 4300
"""Most digits of an integer: the limit of Python, whose parsing time grows with the square of the digits."""

_SHORT_DIGITS = 18
"""Always fits into 64 bits; orjson may turn a longer integer into a float."""
_LONG = re.compile(rb"([0-9]{%d})[0-9]+" % _SHORT_DIGITS)
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_ZEROS = b"0" * (_SHORT_DIGITS + 1)
_INT64 = range(-(1 << 63), 1 << 64)
"""Integers that orjson writes."""
_OPTIONS = orjson.OPT_NON_STR_KEYS


class Unwritable:
    """A value of another process that had no JSON form. Not a dataclass: orjson would write it."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def loads(raw: bytes, *, integer: Callable[[str], Any] = int) -> Any:
    """Parse JSON; `integer` makes the values of integers. Raises ValueError for invalid JSON and longer integers."""
    if _ZEROS not in raw.translate(_AS_ZEROS):  # finds what _LONG finds, in a tenth of the time
        return orjson.loads(raw)
    orjson.loads(_LONG.sub(rb"\1", raw))  # the next parser accepts some invalid JSON, such as half a surrogate pair

    def read(digits: str) -> Any:
        if len(digits) > MAX_DIGITS:
            raise ValueError(f"an integer has {len(digits):,} digits; {MAX_DIGITS:,} are allowed")
        return integer(digits)

    try:
        return json.loads(raw, parse_int=read, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits[:20]}… is too large")
    return value


def as_json(value: Any) -> Any:
    """Return the JSON form of a value that orjson does not write. Raises TypeError."""
    if isinstance(value, Unwritable):
        raise TypeError(value.reason)
    if is_finer_than_python(value):
        return text_of(value)
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return _of_numpy(value)
    if _is_missing(value):
        return None
    if isinstance(value, (Decimal, timedelta)):
        return str(value)
    if isinstance(value, datetime):  # a pandas timestamp
        return value.isoformat()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    raise TypeError(f"a value of type {type(value).__name__}")


def as_shown(value: Any) -> Any:
    """Return the same for a prompt, where bytes are not text. Raises TypeError."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError("bytes, which are no text")
    return as_json(value)


def dumps(value: Any, *, default: Callable[[Any], Any] = as_json, sorts_keys: bool = False) -> bytes:
    """Write JSON. NaN and other missing values become null. Raises TypeError for values that cannot be written."""
    options = _OPTIONS | (orjson.OPT_SORT_KEYS if sorts_keys else 0)
    with suppress(orjson.JSONEncodeError):
        content = orjson.dumps(value, default=default, option=options)
        if b"null" not in content:  # otherwise it may stand for an infinite number
            return content
    try:
        return orjson.dumps(_written(value), default=default, option=options)
    except RecursionError:
        raise TypeError("it is nested too deeply") from None


def _written(value: Any) -> Any:
    """Return a value with replacements for what orjson would change or refuse."""
    if isinstance(value, dict):
        return {str(key) if _is_long(key) else key: _written(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_written(one) for one in value]
    if _is_long(value):
        return orjson.Fragment(str(value))
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value.isoformat() if isinstance(value, time) else value  # orjson refuses times with a zone


def _is_long(value: Any) -> bool:
    return isinstance(value, int) and value not in _INT64


def _of_numpy(value: Any) -> Any:
    if value.dtype.kind not in "mM":
        plain = value.tolist()
        if type(plain) is type(value):  # such as a longdouble
            raise TypeError(f"a value of type {type(value).__name__}")
        return _written(plain)
    if value.ndim:
        return list(value)
    return None if _is_missing(value) else str(value)


def _is_missing(value: Any) -> bool:
    """Return whether a value is missing in pandas or numpy: NA, or a value such as NaT that does not equal itself."""
    return type(value).__name__ == "NAType" or (not isinstance(value, Mapping) and bool(value != value))  # noqa: PLR0124
