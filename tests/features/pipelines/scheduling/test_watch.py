"""Tests of the time since which dispatchers poll schedules: consecutive polls are one watch, a pause starts another."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from features.pipelines.scheduling.watch import PAUSE, note_look, watched_since
from features.pipelines.tables import Schedule
from jobs.tables import ScheduleWatch

MakeSchedule = Callable[..., Schedule]

SECOND = timedelta(seconds=1)


def look(session: Session) -> tuple[datetime, datetime]:
    """Poll; return the start of the watch, and the last recorded poll."""
    note_look(session)
    session.commit()
    row = session.execute(text("SELECT since, seen_at FROM schedule_watch")).one()
    return row.since, row.seen_at


def let_pass(session: Session, time: timedelta) -> None:
    session.execute(text("UPDATE schedule_watch SET since = since - :time, seen_at = seen_at - :time"), {"time": time})
    session.commit()


def test_looks_that_follow_each_other_are_one_watch(session: Session, make_schedule: MakeSchedule) -> None:
    make_schedule()
    first, _ = look(session)
    for _ in range(3):
        let_pass(session, PAUSE - 5 * SECOND)
        since, _ = look(session)
    assert first - since == 3 * (PAUSE - 5 * SECOND)


def test_a_watch_begins_anew_after_a_pause(session: Session, make_schedule: MakeSchedule) -> None:
    make_schedule()
    first, _ = look(session)
    let_pass(session, PAUSE + SECOND)
    since, seen_at = look(session)
    assert since == seen_at > first


def test_a_look_soon_after_another_writes_nothing(session: Session, make_schedule: MakeSchedule) -> None:
    make_schedule()
    look(session)
    note_look(session)
    assert session.scalar(text("SELECT pg_current_xact_id_if_assigned()")) is None


def test_where_there_are_no_schedules_nothing_is_noted(session: Session, make_schedule: MakeSchedule) -> None:
    make_schedule(paused_at=datetime.now(UTC))
    note_look(session)
    assert session.get(ScheduleWatch, 1) is None


@pytest.mark.parametrize(
    ("looked", "is_watch"),
    [
        (timedelta(0), True),
        (PAUSE - SECOND, True),
        (PAUSE + SECOND, False),  # by a dispatcher that was frozen after it
        (None, False),  # by none, ever
    ],
)
def test_only_a_look_that_is_not_long_ago_is_part_of_a_watch(
    session: Session, looked: timedelta | None, *, is_watch: bool
) -> None:
    now = datetime(2026, 10, 24, 18, tzinfo=UTC)
    began = now - timedelta(days=1)
    if looked is not None:
        session.add(ScheduleWatch(since=began, seen_at=now - looked))
        session.flush()
    assert watched_since(session, now=now) == (began if is_watch else now)
