"""Days of a pipeline: in the time zone of its schedule. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from features.pipelines.tables import Schedule
from jobs.accounts.windows import zone_of
from jobs.errors import InputError

_UTC = ZoneInfo("UTC")
DAY = timedelta(days=1)
_FIRST, _LAST = date(2000, 1, 1), date(2099, 12, 31)  # as of the times of schedules


def check_day(day: date) -> None:
    """Raise InputError for a day on which no pipeline runs."""
    if not _FIRST <= day <= _LAST:
        raise InputError(f"day is {day}; give one between {_FIRST} and {_LAST}", param="day", code="invalid_value")


def zone_of_day(schedules: Sequence[Schedule]) -> ZoneInfo:
    """Return the time zone of the first of a pipeline's schedules; UTC without one."""
    return zone_of(schedules[0].time_zone) if schedules else _UTC


def bounds(day: date, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return when a day begins and ends, in UTC; the end belongs to the next day."""
    first, last = (datetime.combine(each, time.min, tzinfo=zone) for each in (day, day + DAY))
    return first.astimezone(UTC), last.astimezone(UTC)


def day_of(moment: datetime, zone: ZoneInfo) -> date:
    return moment.astimezone(zone).date()


def latest_whole_day(now: datetime, zone: ZoneInfo, *, next_at: datetime | None, has_run: bool) -> date:
    """Return the latest day without a run to come: today if it `has_run` and its last one was due, else yesterday.

    `next_at` is the pipeline's next run. Without one it is yesterday, as runs may still be triggered today.
    """
    today = day_of(now, zone)
    is_over = next_at is not None and day_of(next_at, zone) > today
    return today if is_over and has_run else today - DAY


def next_time(now: datetime, zone: ZoneInfo, *, minutes: int) -> datetime:
    """Return the next time at so many minutes after midnight, in UTC. One that clocks skip is an hour later."""
    at = time(minutes // 60, minutes % 60)
    today = day_of(now, zone)
    times = (datetime.combine(today + number * DAY, at, tzinfo=zone).astimezone(UTC) for number in range(2))
    first, second = times
    return first if first > now else second
