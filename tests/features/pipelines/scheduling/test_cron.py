"""Tests of cron in time zones: both clock changes, impossible days, refusals and their messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.pipelines.scheduling.cron import Cron
from jobs.errors import InputError

BERLIN = ZoneInfo("Europe/Berlin")
SPRING = datetime(2026, 3, 28, 12, tzinfo=UTC)  # the night after it, 02:00 becomes 03:00
AUTUMN = datetime(2026, 10, 24, 12, tzinfo=UTC)  # the night after it, 03:00 becomes 02:00


def ticks(expression: str, after: datetime, number: int, zone: ZoneInfo = BERLIN) -> list[str]:
    """Return the local times of the zone, with their UTC offsets."""
    cron = Cron.parse(expression, zone)
    return [f"{tick.astimezone(zone):%d. %H:%M %z}" for tick in islice(cron.all_after(after), number)]


def test_a_time_that_comes_twice_in_autumn_runs_once() -> None:
    assert ticks("30 2 * * *", AUTUMN, 2) == ["25. 02:30 +0200", "26. 02:30 +0100"]


def test_asked_within_the_second_of_two_equal_hours_the_next_run_is_not_in_the_first() -> None:
    second_quarter_past = datetime(2026, 10, 25, 1, 15, tzinfo=UTC)  # 02:15 for the second time
    assert ticks("30 2 * * *", second_quarter_past, 1) == ["26. 02:30 +0100"]


def test_a_time_that_is_left_out_in_spring_runs_at_the_change_and_once() -> None:
    assert ticks("30 2 * * *", SPRING, 2) == ["29. 03:00 +0200", "30. 02:30 +0200"]
    assert ticks("15,45 2 * * *", SPRING, 2) == ["29. 03:00 +0200", "30. 02:15 +0200"]


def test_every_half_hour_goes_on_through_the_hour_that_comes_twice_and_the_one_that_does_not() -> None:
    twice = ["25. 02:00 +0200", "25. 02:30 +0200", "25. 02:00 +0100", "25. 02:30 +0100", "25. 03:00 +0100"]
    assert ticks("*/30 * * * *", datetime(2026, 10, 24, 23, 59, tzinfo=UTC), 5) == twice
    none = ["29. 01:30 +0100", "29. 03:00 +0200", "29. 03:30 +0200"]
    assert ticks("*/30 * * * *", datetime(2026, 3, 29, 0, 29, tzinfo=UTC), 3) == none


def test_a_day_of_the_month_and_one_of_the_week_are_either_of_both() -> None:
    assert ticks("0 3 1 * MON#1", datetime(2026, 11, 15, tzinfo=UTC), 3) == [
        "01. 03:00 +0100",  # December
        "07. 03:00 +0100",  # its first Monday
        "01. 03:00 +0100",  # January
    ]


@pytest.mark.parametrize("name", ["@daily", "@midnight", "0 0 * * *"])
def test_names_stand_for_what_cron_means_by_them(name: str) -> None:
    assert ticks(name, SPRING, 2) == ["29. 00:00 +0100", "30. 00:00 +0200"]


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("0 0 31 2 *", "its day-of-month is wrong"),
        ("0 0 LW 2 */7", "it never matches any day"),  # the last weekday of February is not a Sunday
        ("*/5 * * * * *", "it has 6 fields and seconds are not allowed"),
        ("* * *", "it has 3 fields and 5 are allowed"),
        ("61 * * * *", "its minute is wrong; allowed are 0 to 59"),
        ("* 24 * * *", "its hour is wrong; allowed are 0 to 23"),
        ("* * * FOO *", "its month is wrong"),
        ("* * * * MOM", "its day-of-week is wrong"),
        ("@fortnightly", "'@fortnightly' is not known"),
        ("", "it has 0 fields"),
        ("0," * 500, "it has 1000 characters and 100 are allowed"),
        ("1/²  * * * *", "its minute is wrong"),
        ("* * * * ²L", "its day-of-week is wrong"),
    ],
)
def test_a_wrong_expression_is_refused_with_its_place_and_what_is_allowed(expression: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        Cron.parse(expression, BERLIN)
    assert said in refused.value.message
    assert "Give five fields" in refused.value.message
    assert refused.value.param == "cron"


def test_the_next_runs_say_where_the_clocks_change() -> None:
    upcoming = Cron.parse("30 2 * * *", BERLIN).upcoming(AUTUMN - timedelta(days=1), number=5)
    assert [tick.note for tick in upcoming] == [None, None, "clocks are put back by 1 h before it", None, None]
    assert [f"{tick.at:%d. %H:%M}" for tick in upcoming][1:3] == ["25. 00:30", "26. 01:30"]
    spring = Cron.parse("30 2 * * *", BERLIN).upcoming(SPRING, number=1)
    assert (f"{spring[0].local:%H:%M}", spring[0].note) == ("03:00", "clocks are put forward by 1 h before it")


def test_the_next_runs_stop_at_the_end() -> None:
    cron = Cron.parse("0 * * * *", ZoneInfo("UTC"))
    assert len(cron.upcoming(AUTUMN, number=5, until=AUTUMN + timedelta(hours=2))) == 2


def test_an_end_of_time_is_an_end() -> None:
    assert Cron.parse("0 0 1 1 *", ZoneInfo("UTC")).after(datetime(9999, 6, 1, tzinfo=UTC)) is None


_EXPRESSIONS = [
    "30 2 * * *",
    "*/30 * * * *",
    "0 1-3 * * *",
    "15,45 0,2 * * *",
    "0 0 * * SUN",
    "7 */2 * * *",
    "@monthly",
]
_ZONES = ["Europe/Berlin", "UTC", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Africa/Casablanca"]


@given(
    st.sampled_from(_EXPRESSIONS),
    st.sampled_from(_ZONES),
    st.datetimes(datetime(2018, 1, 1), datetime(2027, 12, 31), timezones=st.just(UTC)),
)
def test_ticks_only_grow_and_the_one_before_is_the_one_that_comes_before(
    expression: str, zone: str, moment: datetime
) -> None:
    cron = Cron.parse(expression, ZoneInfo(zone))
    first, second, third = islice(cron.all_after(moment), 3)
    assert moment < first < second < third
    assert cron.before(third) == second
    assert cron.before(second) == first
    before = cron.before(first)
    assert before is not None
    assert before <= moment
