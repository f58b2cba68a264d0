"""Rows as JSON, for prompts, for outputs and between processes: integers keep all their digits, and times all parts.

Knows no table; what JSON has no form for is written as people write it, or refused.
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
"""Of an integer: Python reads no longer ones, whose reading takes time that grows with their square."""

_SHORT_DIGITS = 18
"""What always fits into 64 bits; of a longer integer orjson may make a float."""
_LONG = re.compile(rb"([0-9]{%d})[0-9]+" % _SHORT_DIGITS)
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_ZEROS = b"0" * (_SHORT_DIGITS + 1)
_INT64 = range(-(1 << 63), 1 << 64)
"""What orjson writes."""
_OPTIONS = orjson.OPT_NON_STR_KEYS


class Unwritable:
    """A value of another process, for which there was no form in JSON. No dataclass: orjson would write it."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def loads(raw: bytes, *, integer: Callable[[str], Any] = int) -> Any:
    """Read JSON; `integer` makes the value of an integer. Raises ValueError for what is none, and for one too long."""
    if _ZEROS not in raw.translate(_AS_ZEROS):  # as _LONG finds it, in a tenth of the time
        return orjson.loads(raw)
    orjson.loads(_LONG.sub(rb"\1", raw))  # the next takes what is no JSON, such as half a surrogate pair

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
    """Return what JSON has a form for in place of a value that it has none for. Raises TypeError."""
    if isinstance(value, Unwritable):
        raise TypeError(value.reason)
    if is_finer_than_python(value):
        return text_of(value)
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return _of_numpy(value)
    if _is_missing(value):
        return None
    if isinstance(value, (Decimal, timedelta)):
        return str(value)
    if isinstance(value, datetime):  # one of pandas
        return value.isoformat()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    raise TypeError(f"a value of type {type(value).__name__}")


def as_shown(value: Any) -> Any:
    """Return the same for a prompt, in which bytes are no text. Raises TypeError."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError("bytes, which are no text")
    return as_json(value)


def dumps(value: Any, *, default: Callable[[Any], Any] = as_json, sorts_keys: bool = False) -> bytes:
    """Write JSON. NaN is null, as all is that is missing. Raises TypeError for what cannot be written."""
    options = _OPTIONS | (orjson.OPT_SORT_KEYS if sorts_keys else 0)
    with suppress(orjson.JSONEncodeError):
        written = orjson.dumps(value, default=default, option=options)
        if b"null" not in written:  # else it may stand for an infinite number
            return written
    try:
        return orjson.dumps(_written(value), default=default, option=options)
    except RecursionError:
        raise TypeError("it is nested too deeply") from None


def _written(value: Any) -> Any:
    """Return a value with what orjson would change or refuse as it is to be written."""
    if isinstance(value, dict):
        return {str(key) if _is_long(key) else key: _written(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_written(one) for one in value]
    if _is_long(value):
        return orjson.Fragment(str(value))
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value.isoformat() if isinstance(value, time) else value  # orjson has none with a zone


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
    """Tell what pandas and numpy have instead of a value, such as NaT, which does not equal itself; or NA."""
    return type(value).__name__ == "NAType" or (not isinstance(value, Mapping) and bool(value != value))  # noqa: PLR0124
