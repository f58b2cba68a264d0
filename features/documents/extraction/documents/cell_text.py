"""The text of a spreadsheet's cell."""

from __future__ import annotations

import datetime


def cell_text(value: object) -> str:
    """Return a value as text: numbers with up to 15 digits, dates and times in ISO 8601."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.15g}"
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value)
