"""Tests that days and months of time zones follow each other without gaps, over both clock changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.accounts.windows import window_at, zone_of
from jobs.errors import InputError
from jobs.states import BudgetWindow

DAY, MONTH = BudgetWindow.DAY, BudgetWindow.MONTH
ZONES = ["UTC", "Europe/Berlin", "America/Santiago", "America/Havana", "Asia/Kolkata", "Pacific/Apia", "Africa/Cairo"]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("moment", "zone", "start", "end"),
    [
        ("2026-03-29T12:00+00:00", "Europe/Berlin", "2026-03-28T23:00+00:00", "2026-03-29T22:00+00:00"),  # 23 hours
        ("2026-10-25T12:00+00:00", "Europe/Berlin", "2026-10-24T22:00+00:00", "2026-10-25T23:00+00:00"),  # 25 hours
        ("2026-10-25T00:30+00:00", "Europe/Berlin", "2026-10-24T22:00+00:00", "2026-10-25T23:00+00:00"),  # first 02:30
        ("2026-10-25T01:30+00:00", "Europe/Berlin", "2026-10-24T22:00+00:00", "2026-10-25T23:00+00:00"),  # second 02:30
        # Clocks set forward at midnight: the day begins at 01:00; set back over it: at the first 00:00.
        ("2026-09-06T12:00+00:00", "America/Santiago", "2026-09-06T04:00+00:00", "2026-09-07T03:00+00:00"),
        ("2026-04-04T12:00+00:00", "America/Santiago", "2026-04-04T03:00+00:00", "2026-04-05T04:00+00:00"),
        ("2026-11-01T12:00+00:00", "America/Havana", "2026-11-01T04:00+00:00", "2026-11-02T05:00+00:00"),
        ("2026-02-28T23:59:59+00:00", "UTC", "2026-02-28T00:00+00:00", "2026-03-01T00:00+00:00"),
    ],
)
def test_a_day_is_that_of_its_zone_however_long_it_is(moment: str, zone: str, start: str, end: str) -> None:
    assert window_at(at(moment), DAY, zone_of(zone)) == (at(start), at(end))


def test_a_month_begins_and_ends_at_midnight_of_its_zone() -> None:
    berlin = zone_of("Europe/Berlin")
    march = (at("2026-02-28T23:00+00:00"), at("2026-03-31T22:00+00:00"))
    assert window_at(at("2026-03-31T21:59:59+00:00"), MONTH, berlin) == march
    assert window_at(march[1], MONTH, berlin) == (march[1], at("2026-04-30T22:00+00:00"))
    assert window_at(at("2026-12-31T23:30+00:00"), MONTH, berlin)[1] == at("2027-01-31T23:00+00:00")


@pytest.mark.parametrize("zone", ZONES)
def test_the_days_of_years_follow_each_other(zone: str) -> None:
    starts = [at("2009-01-01T00:00+00:00")]
    while starts[-1] < at("2013-01-01T00:00+00:00"):
        end = window_at(starts[-1], DAY, zone_of(zone))[1]
        assert end is not None
        assert window_at(end - timedelta(microseconds=1), DAY, zone_of(zone))[1] == end
        starts.append(end)
    lengths = {later - earlier for earlier, later in pairwise(starts[1:])}
    assert all(timedelta(hours=22) < length < timedelta(hours=26) for length in lengths)


@given(
    st.datetimes(min_value=datetime(1990, 1, 1), max_value=datetime(2035, 1, 1), timezones=st.just(UTC)),
    st.sampled_from(ZONES),
    st.sampled_from([DAY, MONTH]),
)
def test_a_moment_lies_in_its_window_and_in_no_other(moment: datetime, zone: str, window: BudgetWindow) -> None:
    start, end = window_at(moment, window, zone_of(zone))
    assert start is not None
    assert end is not None
    assert start <= moment < end
    assert window_at(start, window, zone_of(zone)) == (start, end)
    assert window_at(end, window, zone_of(zone))[0] == end


def test_a_total_never_ends() -> None:
    assert window_at(datetime.now(UTC), BudgetWindow.TOTAL, zone_of("UTC")) == (None, None)


@pytest.mark.parametrize("name", ["", "Berlin", "../etc/passwd", "Europe/Berlin\x00", "x" * 300])
def test_an_unknown_zone_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="Europe/Berlin"):
        zone_of(name)
