"""Limits of a call that creates a batch, which a client without a database checks too: window and idempotency key."""

from __future__ import annotations

import re
from datetime import timedelta

from jobs.errors import InputError

MIN_WINDOW = timedelta(minutes=1)
MAX_WINDOW = timedelta(days=30)
MAX_IDEMPOTENCY_KEY = 255

_WINDOW = re.compile(r"([1-9][0-9]{0,5})([mhd])", re.ASCII)
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def parse_window(text: str) -> timedelta:
    """Read a completion window such as 24h, 30m or 7d. Raises InputError naming the allowed forms and range."""
    match = _WINDOW.fullmatch(text)
    window = timedelta(**{_UNITS[match[2]]: int(match[1])}) if match else None
    if window is None or not MIN_WINDOW <= window <= MAX_WINDOW:
        raise InputError(
            f"Invalid completion_window: {text[:40]!r}. Give minutes, hours or days such as '30m', '24h' or '7d', "
            "from 1m to 30d.",
            param="completion_window",
            code="invalid_value",
        )
    return window
