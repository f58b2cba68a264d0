"""Tests of days in a schedule's time zone."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from features.reports.days import bounds, latest_whole_day

BERLIN = ZoneInfo("Europe/Berlin")


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(("day", "hours"), [("2026-10-24", 24), ("2026-10-25", 25), ("2026-03-29", 23)])
def test_a_day_is_longer_or_shorter_where_clocks_change(day: str, hours: int) -> None:
    start, end = bounds(date.fromisoformat(day), BERLIN)
    assert end - start == timedelta(hours=hours)
    assert start.astimezone(BERLIN).isoformat().startswith(f"{day}T00:00:00")


@pytest.mark.parametrize(
    ("now", "next_at", "day"),
    [
        ("2026-11-28T06:00", "2026-11-29T01:30", "2026-11-28"),  # nightly, in the morning after
        ("2026-11-28T00:30", "2026-11-28T01:30", "2026-11-27"),  # before the night's run
        ("2026-11-28T06:00", "2026-11-28T22:00", "2026-11-27"),  # every evening
        ("2026-11-28T23:30", "2026-11-29T01:30", "2026-11-28"),  # 00:30 of the 29th in Berlin, before its run
        ("2026-11-28T06:00", None, "2026-11-27"),
    ],
)
def test_the_latest_day_has_no_run_to_come(now: str, next_at: str | None, day: str) -> None:
    upcoming = None if next_at is None else utc(next_at)
    assert latest_whole_day(utc(now), BERLIN, next_at=upcoming, has_run=True).isoformat() == day


def test_a_day_without_a_run_is_not_the_latest_before_it_is_over() -> None:
    saturday, monday = utc("2026-11-28T06:00"), utc("2026-11-30T22:00")
    assert latest_whole_day(saturday, BERLIN, next_at=monday, has_run=False).isoformat() == "2026-11-27"
