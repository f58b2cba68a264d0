"""Days and months of a time zone as points in time: the bounds of budget windows. No SQL.

A day begins at its first moment: where clocks are put forward at midnight that is 01:00, where they are put back over
it the first of two midnights. So days have 23, 24 or 25 hours, and follow each other without a gap.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from jobs.errors import InputError
from jobs.states import BudgetWindow

_DECEMBER = 12


def zone_of(name: str) -> ZoneInfo:
    """Return a time zone by its name in the IANA database. Raises InputError."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        message = f"the time zone is {name[:80]!r}, which is not known here; give one such as UTC or Europe/Berlin"
        raise InputError(message, param="time_zone") from None


def window_at(moment: datetime, window: BudgetWindow, zone: ZoneInfo) -> tuple[datetime | None, datetime | None]:
    """Return the window that contains a moment: its start, and that of the next one, both in UTC.

    `moment` has a time zone. None means no beginning and no end.
    """
    if window is BudgetWindow.TOTAL:
        return None, None
    today = moment.astimezone(zone).date()
    first = today if window is BudgetWindow.DAY else today.replace(day=1)
    return _begin(first, zone), _begin(_next(first, window), zone)


def _next(first: date, window: BudgetWindow) -> date:
    if window is BudgetWindow.DAY:
        return first + timedelta(days=1)
    if first.month == _DECEMBER:
        return first.replace(year=first.year + 1, month=1)
    return first.replace(month=first.month + 1)


def _begin(day: date, zone: ZoneInfo) -> datetime:
    # fold 0: of a repeated midnight the first; a skipped one gets the offset before the change, which makes it the
    # moment of the change (PEP 495).
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)
