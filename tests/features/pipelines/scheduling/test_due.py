"""Tests that schedules' runs are made exactly once, by any number of dispatchers, despite clock changes and crashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from features.pipelines.scheduling.due import timetable_of
from features.pipelines.states import RunState
from features.pipelines.tables import Run, Schedule
from jobs.accounts.tenants import set_disabled
from jobs.database import connect, sessions
from jobs.tables import ScheduleWatch, Tenant
from tests.features.pipelines.making import make_due

MakeSchedule = Callable[..., Schedule]

EVENING = datetime(2026, 10, 24, 18, tzinfo=UTC)  # before the night in which the clocks of Berlin are set back
HOURS = 30
NUM_DISPATCHERS = 4


def test_four_dispatchers_make_each_run_of_an_autumn_night_once(
    database_url: str, session: Session, make_schedule: MakeSchedule
) -> None:
    end = EVENING + timedelta(hours=HOURS)
    wishes: dict[str, Any] = {"at": EVENING, "time_zone": "Europe/Berlin", "overlap": "queue_all", "catch_up": "all"}
    wishes["catch_up_seconds"] = HOURS * 3600  # one of them may be delayed while the others' clocks go on
    crons = ["30 2 * * *", "0 * * * *", "*/30 * * * *"] * 2
    schedules = [make_schedule(cron, jitter_seconds=number % 3, **wishes) for number, cron in enumerate(crons)]
    expected = {
        (schedule.id, tick)
        for schedule in schedules
        for tick in takewhile(lambda tick: tick <= end, timetable_of(schedule).cron.all_after(EVENING))
    }
    engine = connect(database_url, connections=NUM_DISPATCHERS)
    maker = sessions(engine)

    def dispatch(_: int) -> None:
        for minutes in range(0, HOURS * 60 + 30, 30):
            with maker.begin() as own:
                make_due(own, now=EVENING + timedelta(minutes=minutes))

    with ThreadPoolExecutor(NUM_DISPATCHERS) as dispatchers:
        list(dispatchers.map(dispatch, range(NUM_DISPATCHERS)))
    with maker.begin() as last:  # rows that another had locked when each of them polled last
        make_due(last, now=end + timedelta(minutes=1))
    engine.dispose()
    made = [(run.schedule_id, run.scheduled_for) for run in session.scalars(select(Run))]
    assert len(made) == len(expected)
    assert set(made) == expected
    nightly = Counter(schedule_id for schedule_id, _ in made)
    assert nightly[schedules[0].id] == 1, "02:30 came twice"


def test_a_dispatcher_that_dies_before_its_commit_leaves_nothing_and_the_next_one_makes_the_run(
    maker: sessionmaker[Session], session: Session, make_schedule: MakeSchedule
) -> None:
    schedule = make_schedule(at=EVENING)
    now = EVENING + timedelta(hours=1)
    dying = maker()
    assert make_due(dying, now=now) == 1
    with maker.begin() as other:
        assert make_due(other, now=now) == 0, "the schedule is another's"
    dying.close()  # rolls back, as the server does when its client is killed
    assert session.scalars(select(Run)).all() == []
    for _ in range(2):
        with maker.begin() as other:
            make_due(other, now=now)
    [run] = session.scalars(select(Run)).all()
    assert (run.scheduled_for, run.interval_start, run.interval_end) == (now, EVENING, now)
    session.refresh(schedule)
    assert schedule.next_at == now + timedelta(hours=1)


def looked_all_the_time(session: Session, *, now: datetime, since: datetime = EVENING - timedelta(days=1)) -> None:
    session.merge(ScheduleWatch(id=1, since=since, seen_at=now))
    session.commit()


def test_the_clock_is_the_databases(session: Session, make_schedule: MakeSchedule) -> None:
    make_schedule(at=datetime.now(UTC) - timedelta(hours=1), cron="* * * * *")
    make_due(session)
    newest = session.scalars(select(Run.scheduled_for).order_by(Run.scheduled_for.desc())).first()
    now = session.scalar(text("SELECT date_trunc('minute', now())"))
    assert newest == now


def test_a_paused_schedule_and_one_of_a_deleted_tenant_make_no_runs(
    session: Session, tenant: Tenant, make_schedule: MakeSchedule
) -> None:
    now = EVENING + timedelta(hours=5)
    make_schedule(at=EVENING, paused_at=EVENING)
    assert make_due(session, now=now) == 0
    make_schedule(at=EVENING)
    tenant = session.get_one(Tenant, tenant.id)
    tenant.deleted_at = EVENING
    session.flush()
    assert make_due(session, now=now) == 0
    assert session.scalars(select(Run)).all() == []


def test_schedules_rest_while_their_tenant_is_disabled_and_then_make_up_for_it_as_they_say(
    session: Session, tenant: Tenant, make_schedule: MakeSchedule
) -> None:
    latest, never = make_schedule(at=EVENING), make_schedule(at=EVENING, catch_up="none")
    tenant = session.get_one(Tenant, tenant.id)
    set_disabled(session, tenant, is_disabled=True)
    assert make_due(session, now=EVENING + timedelta(hours=5)) == 0
    set_disabled(session, tenant, is_disabled=False)
    assert tenant.enabled_at is not None
    tenant.enabled_at = EVENING + timedelta(hours=5, minutes=30)  # the clock of this test
    looked_all_the_time(session, now=tenant.enabled_at)
    make_due(session, now=tenant.enabled_at)
    queued = session.scalars(select(Run).where(Run.state == RunState.QUEUED)).all()
    assert [(run.schedule_id, run.scheduled_for) for run in queued] == [(latest.id, EVENING + timedelta(hours=5))]
    session.refresh(never)
    assert never.next_at == EVENING + timedelta(hours=6)


def test_a_zone_that_is_no_longer_known_pauses_its_schedule_and_holds_up_no_other(
    session: Session, make_schedule: MakeSchedule
) -> None:
    lost, good = make_schedule(at=EVENING), make_schedule(at=EVENING)
    session.execute(text("UPDATE schedule SET time_zone = 'Mars/Base' WHERE id = :id"), {"id": lost.id})
    session.commit()
    make_due(session, now=EVENING + timedelta(hours=1))
    assert session.scalars(select(Run.schedule_id)).all() == [good.id]
    assert lost.pause_reason is not None
    assert "Mars/Base" in lost.pause_reason


def test_a_run_in_favour_of_which_others_are_cancelled(session: Session, make_schedule: MakeSchedule) -> None:
    make_schedule(at=EVENING, overlap="cancel_running")
    make_due(session, now=EVENING + timedelta(hours=1))
    first = session.scalars(select(Run)).one()
    make_due(session, now=EVENING + timedelta(hours=2))
    session.refresh(first)
    assert first.state == RunState.CANCELLED
    assert first.reason == "the run of 2026-10-24 20:00 UTC is due"
    assert [run.state for run in session.scalars(select(Run).order_by(Run.scheduled_for))] == ["cancelled", "queued"]


def test_runs_that_are_skipped_say_why_and_are_counted(session: Session, make_schedule: MakeSchedule) -> None:
    schedule = make_schedule(at=EVENING)
    for hours in (1, 2, 3):
        make_due(session, now=EVENING + timedelta(hours=hours))
    runs = session.scalars(select(Run).order_by(Run.scheduled_for)).all()
    assert [run.state for run in runs] == ["queued", "skipped", "skipped"]
    assert runs[1].reason == "an earlier run has not ended, and the schedule's overlap is skip"
    assert runs[1].ended_at is not None
    assert schedule.num_skipped == 2
