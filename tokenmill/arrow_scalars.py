"""Arrow scalars with nanoseconds, which Python's own values would truncate."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from tokenmill.packages import needed

_FRACTION = re.compile(r"(\.[0-9]{6})")


def is_finer_than_python(value: Any) -> bool:
    """Return whether this is a scalar with nanoseconds."""
    return type(value).__module__ == "pyarrow.lib" and getattr(getattr(value, "type", None), "unit", None) == "ns"


def text_of(scalar: Any) -> str:
    """Return a scalar's text in Python's format, with nine digits of the second."""
    value, rest = python_value(scalar)
    if isinstance(value, timedelta):
        text = str(value) if value.microseconds else f"{value}.000000"
    else:
        text = value.isoformat(timespec="microseconds")
    return _FRACTION.sub(rf"\g<1>{rest:03d}", text)


def python_value(scalar: Any) -> tuple[Any, int]:
    """Return the value to the microsecond, and the remaining nanoseconds."""
    arrow = needed("pyarrow", by="a table with types")
    microseconds, rest = divmod(scalar.value, 1000)
    if isinstance(scalar, arrow.TimestampScalar):
        kind = arrow.timestamp("us", tz=scalar.type.tz)
    else:
        kind = arrow.time64("us") if isinstance(scalar, arrow.Time64Scalar) else arrow.duration("us")
    return arrow.scalar(microseconds, kind).as_py(), rest
