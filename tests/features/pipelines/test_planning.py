"""Tests of past ticks: catch-up, overlap, jitter, many of them; nothing is left out or made twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from features.pipelines.scheduling import planning
from features.pipelines.scheduling.cron import Cron
from features.pipelines.scheduling.planning import MAX_QUEUED, MAX_TICKS, Plan, Timetable, Underway
from features.pipelines.states import CatchUp, Overlap

TEN = datetime(2026, 11, 2, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)
IDLE = Underway(running=0, queued=0)
HOURLY = Timetable(
    schedule_id="schedule_1",
    cron=Cron.parse("0 * * * *", ZoneInfo("UTC")),
    ends_at=None,
    jitter_seconds=0,
    overlap=Overlap.SKIP,
    catch_up=CatchUp.LATEST,
    catch_up_window=6 * HOUR,
)


def plan(timetable: Timetable, next_at: datetime, *, underway: Underway, now: datetime) -> Plan:
    """Plan like the first dispatcher that polls after a pause."""
    return planning.plan(timetable, next_at, underway=underway, watched_since=now, now=now)


def shown(planned: Plan) -> list[tuple[int, str | None, int]]:
    """Return for each run its hour, why it is skipped, and how many ticks it stands for."""
    return [(run.scheduled_for.hour, run.skipped, run.num_missed) for run in planned.runs]


def test_a_tick_on_time_runs_for_the_hour_before_it() -> None:
    planned = plan(HOURLY, TEN, underway=IDLE, now=TEN + timedelta(seconds=1))
    assert shown(planned) == [(10, None, 1)]
    assert planned.runs[0].interval_start == TEN - HOUR
    assert planned.next_at == TEN + HOUR


def test_nothing_is_due_before_its_time() -> None:
    assert plan(HOURLY, TEN, underway=IDLE, now=TEN - timedelta(seconds=1)) == Plan(runs=(), next_at=TEN)


def test_the_next_tick_follows_from_the_last_one_and_not_from_the_clock() -> None:
    late = plan(HOURLY, TEN, underway=IDLE, now=TEN + timedelta(minutes=59, seconds=59))
    assert late.next_at == TEN + HOUR


def test_of_missed_runs_the_latest_is_made_up_for() -> None:
    planned = plan(HOURLY, TEN, underway=IDLE, now=TEN + 3.5 * HOUR)
    reason = "no dispatcher checked the schedule when it was due, and a later run covers it"
    assert shown(planned) == [(12, reason, 3), (13, None, 1)]
    assert [run.is_late for run in planned.runs] == [True, True]
    assert planned.runs[0].interval_start == TEN - HOUR, "the one that stands for three begins where the first did"


def test_all_missed_runs_follow_each_other_where_the_schedule_wants_that() -> None:
    every = replace(HOURLY, catch_up=CatchUp.ALL)
    planned = plan(every, TEN, underway=IDLE, now=TEN + 3 * HOUR)
    assert shown(planned) == [(10, None, 1), (11, None, 1), (12, None, 1), (13, None, 1)]


def test_a_run_that_is_later_than_the_window_is_skipped() -> None:
    planned = plan(replace(HOURLY, catch_up=CatchUp.ALL), TEN, underway=IDLE, now=TEN + 8.5 * HOUR)
    [skipped, *others] = shown(planned)
    assert skipped == (12, "no dispatcher checked the schedule for longer than its catch_up_window of 6:00:00", 3)
    assert [hour for hour, *_ in others] == [13, 14, 15, 16, 17, 18]


def test_no_catch_up_runs_nothing_that_is_late_and_all_that_is_not() -> None:
    never = replace(HOURLY, catch_up=CatchUp.NONE)
    planned = plan(never, TEN, underway=IDLE, now=TEN + 2 * HOUR + timedelta(seconds=30))
    reason = "no dispatcher checked the schedule when it was due, and its catch_up is none"
    assert shown(planned) == [(11, reason, 2), (12, None, 1)]


@pytest.mark.parametrize(
    ("overlap", "underway", "reason"),
    [
        (
            Overlap.SKIP,
            Underway(running=1, queued=0),
            "an earlier run has not ended, and the schedule's overlap is skip",
        ),
        (
            Overlap.SKIP,
            Underway(running=0, queued=1),
            "an earlier run has not ended, and the schedule's overlap is skip",
        ),
        (Overlap.QUEUE_ONE, Underway(running=1, queued=0), None),
        (
            Overlap.QUEUE_ONE,
            Underway(running=1, queued=1),
            "an earlier run waits to begin, and the schedule's overlap is queue_one",
        ),
        (Overlap.QUEUE_ALL, Underway(running=1, queued=7), None),
        (
            Overlap.QUEUE_ALL,
            Underway(running=1, queued=MAX_QUEUED),
            "100 runs of the schedule wait, which is the limit",
        ),
        (Overlap.CANCEL_RUNNING, Underway(running=1, queued=0), None),
    ],
)
def test_a_run_that_is_due_while_another_is_under_way(overlap: Overlap, underway: Underway, reason: str | None) -> None:
    planned = plan(replace(HOURLY, overlap=overlap), TEN, underway=underway, now=TEN)
    assert shown(planned) == [(10, reason, 1)]
    assert planned.runs[0].cancels is (overlap is Overlap.CANCEL_RUNNING)


def test_many_missed_ticks_are_looked_at_in_several_goes_and_none_is_left_out() -> None:
    minutely = replace(HOURLY, cron=Cron.parse("* * * * *", ZoneInfo("UTC")))
    now, next_at, seen, queued = TEN + timedelta(days=2), TEN, 0, []
    while next_at <= now:
        planned = plan(minutely, next_at, underway=IDLE, now=now)
        assert planned.next_at is not None
        assert planned.next_at > next_at
        assert sum(run.num_missed for run in planned.runs) <= MAX_TICKS
        seen += sum(run.num_missed for run in planned.runs)
        queued += [run.scheduled_for for run in planned.runs if run.skipped is None]
        next_at = planned.next_at
    assert seen == 2 * 24 * 60 + 1
    assert queued == [now]


def test_jitter_is_the_same_whoever_asks_and_within_its_bound() -> None:
    jittery = replace(HOURLY, jitter_seconds=600)
    dues = [jittery.due(TEN + number * HOUR) - (TEN + number * HOUR) for number in range(50)]
    assert len(set(dues)) > 25
    assert timedelta(0) <= min(dues) <= max(dues) <= timedelta(seconds=600)
    assert jittery.due(TEN) == jittery.due(TEN) != replace(jittery, schedule_id="schedule_2").due(TEN)


def test_the_last_tick_is_the_one_at_the_end() -> None:
    ending = replace(HOURLY, ends_at=TEN + HOUR)
    assert plan(ending, TEN + HOUR, underway=IDLE, now=TEN + HOUR).next_at is None
    assert ending.first(starts_at=None, now=TEN + HOUR) is None
    assert ending.first(starts_at=TEN + HOUR, now=TEN) == TEN + HOUR


@pytest.mark.parametrize("catch_up", CatchUp)
def test_a_run_that_a_dispatcher_takes_long_to_make_is_not_late(catch_up: CatchUp) -> None:
    strict = replace(HOURLY, catch_up=catch_up, catch_up_window=timedelta(0))
    planned = planning.plan(strict, TEN, underway=IDLE, watched_since=TEN - HOUR, now=TEN + timedelta(minutes=59))
    assert shown(planned) == [(10, None, 1)]
    assert not planned.runs[0].is_late


@pytest.mark.parametrize("catch_up", CatchUp)
def test_no_later_run_makes_up_for_one_that_a_dispatcher_was_slow_to_make(catch_up: CatchUp) -> None:
    every = replace(HOURLY, catch_up=catch_up, overlap=Overlap.QUEUE_ALL)
    planned = planning.plan(every, TEN, underway=IDLE, watched_since=TEN, now=TEN + 2 * HOUR)
    assert shown(planned) == [(10, None, 1), (11, None, 1), (12, None, 1)]


def test_runs_of_a_pause_are_missed_and_those_after_it_are_not() -> None:
    never = replace(HOURLY, catch_up=CatchUp.NONE, overlap=Overlap.QUEUE_ALL)
    planned = planning.plan(never, TEN, underway=IDLE, watched_since=TEN + 1.5 * HOUR, now=TEN + 3 * HOUR)
    reason = "no dispatcher checked the schedule when it was due, and its catch_up is none"
    assert shown(planned) == [(11, reason, 2), (12, None, 1), (13, None, 1)]


def test_jitter_that_delays_a_run_beyond_the_next_one_does_not_make_that_late() -> None:
    minutely = replace(HOURLY, cron=Cron.parse("* * * * *", ZoneInfo("UTC")), overlap=Overlap.QUEUE_ALL)
    jittery = replace(minutely, jitter_seconds=3600, catch_up=CatchUp.NONE)
    planned = planning.plan(jittery, TEN, underway=IDLE, watched_since=TEN, now=TEN + 3 * HOUR)
    assert {run.skipped for run in planned.runs[:MAX_QUEUED]} == {None}
