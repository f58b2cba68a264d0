"""Tests of a tenant's schedules and runs: created, changed, paused, resumed, backfilled; refused with a reason."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.orm import Session, sessionmaker

from features.pipelines import lifecycle
from features.pipelines.scheduling import schedules
from features.pipelines.scheduling.schedules import ScheduleWish
from features.pipelines.states import RunState
from features.pipelines.tables import Pipeline, Run, Schedule
from jobs.accounts.tenants import create_tenant
from jobs.errors import ConflictError, InputError, LimitError, NotFoundError
from jobs.ids import new_id
from jobs.states import IllegalMoveError
from jobs.tables import Tenant
from tests.all_settings import Settings

MakeSchedule = Callable[..., Schedule]

HOUR = timedelta(hours=1)
DAY = datetime(2026, 10, 1, tzinfo=UTC)


def make(session: Session, pipeline: Pipeline, settings: Settings, **wishes: Any) -> Schedule:
    wish = ScheduleWish(**{"name": "nightly", "cron": "30 2 * * *"} | wishes)
    return schedules.create_schedule(session, pipeline.tenant_id, pipeline.id, wish, settings)


def test_a_schedule_runs_next_after_now_or_from_its_start_on(
    session: Session, pipeline: Pipeline, settings: Settings
) -> None:
    now = session.scalar(text("SELECT now()"))
    schedule = make(session, pipeline, settings, cron="* * * * *")
    assert schedule.next_at is not None
    assert timedelta(0) < schedule.next_at - now <= timedelta(minutes=1)
    start = datetime(2099, 3, 29, 1, tzinfo=UTC)
    later = make(session, pipeline, settings, name="later", cron="0 * * * *", starts_at=start)
    assert later.next_at == start
    assert [tick.at for tick in schedules.upcoming(session, later, number=3)] == [start + n * HOUR for n in range(3)]


@pytest.mark.parametrize(
    ("wishes", "param", "said"),
    [
        ({"cron": "0 0 31 2 *"}, "cron", "its day-of-month is wrong"),
        ({"time_zone": "Europe/Belin"}, "time_zone", "give one such as UTC or Europe/Berlin"),
        ({"time_zone": "../../etc/passwd"}, "time_zone", "is not known here"),
        ({"name": "Nightly!"}, "name", "give 1 to 63 characters of a-z, 0-9, - and _"),
        ({"jitter_seconds": 7200}, "jitter_seconds", "give 0 to 3600"),
        ({"catch_up_seconds": -1}, "catch_up_seconds", "give 0 to 604800"),
        ({"max_failures": 0}, "max_failures", "give 1 to 1000"),
        ({"late_after_seconds": 0}, "late_after_seconds", "give 1 to 2678400"),
        ({"ends_at": datetime(2020, 1, 1, tzinfo=UTC)}, "ends_at", "would never run"),
        ({"starts_at": datetime(1900, 1, 1, tzinfo=UTC)}, "starts_at", "between 2000 and 2100"),
    ],
)
def test_a_wrong_schedule_is_refused_with_its_place(
    session: Session, pipeline: Pipeline, settings: Settings, wishes: dict[str, Any], param: str, said: str
) -> None:
    with pytest.raises(InputError) as refused:
        make(session, pipeline, settings, **wishes)
    assert refused.value.param == param
    assert said in refused.value.message
    assert session.scalars(select(Schedule)).all() == []


def test_names_and_numbers_of_schedules_have_bounds(session: Session, pipeline: Pipeline, settings: Settings) -> None:
    make(session, pipeline, settings)
    with pytest.raises(ConflictError, match="named 'nightly' exists"):
        make(session, pipeline, settings)
    with pytest.raises(LimitError, match="You have 1 schedules"):
        make(session, pipeline, settings.model_copy(update={"tenant_pipelines": 1}), name="more")


def test_another_tenants_schedule_is_not_there(session: Session, pipeline: Pipeline, settings: Settings) -> None:
    schedule = make(session, pipeline, settings)
    stranger = create_tenant(session, "stranger")
    for call in (
        schedules.get_schedule,
        schedules.pause_schedule,
        schedules.resume_schedule,
        schedules.delete_schedule,
    ):
        with pytest.raises(NotFoundError):
            call(session, stranger.id, schedule.id)
    with pytest.raises(NotFoundError):
        schedules.create_schedule(session, stranger.id, pipeline.id, ScheduleWish(name="a", cron="@daily"), settings)


def test_a_schedule_that_was_paused_goes_on_from_now_and_makes_up_for_nothing(
    session: Session, pipeline: Pipeline, make_schedule: MakeSchedule
) -> None:
    schedule = make_schedule("* * * * *", at=datetime.now(UTC) - 5 * HOUR)
    schedules.pause_schedule(session, pipeline.tenant_id, schedule.id)
    assert schedules.upcoming(session, schedule, number=5) == []
    resumed = schedules.resume_schedule(session, pipeline.tenant_id, schedule.id)
    now = session.scalar(text("SELECT now()"))
    assert resumed.next_at is not None
    assert resumed.next_at > now
    assert resumed.paused_at is None


def test_a_change_of_its_times_counts_from_now_and_another_one_leaves_them(
    session: Session, pipeline: Pipeline, settings: Settings
) -> None:
    schedule = make(session, pipeline, settings, cron="0 0 1 1 *")
    before = schedule.next_at
    changed = schedules.change_schedule(session, pipeline.tenant_id, "nightly", {"max_failures": 2})
    assert (changed.next_at, changed.max_failures) == (before, 2)
    changed = schedules.change_schedule(session, pipeline.tenant_id, "nightly", {"cron": "* * * * *"})
    assert changed.next_at is not None
    assert before is not None
    assert changed.next_at < before
    with pytest.raises(InputError):
        schedules.change_schedule(session, pipeline.tenant_id, "nightly", {"cron": "never"})


def test_a_backfill_makes_each_run_of_a_range_once(
    session: Session, pipeline: Pipeline, make_schedule: MakeSchedule, settings: Settings
) -> None:
    schedule = make_schedule("0 */6 * * *")
    asked: dict[str, Any] = {"settings": settings, "start": DAY, "end": DAY + 24 * HOUR}
    runs = schedules.backfill(session, pipeline.tenant_id, schedule.id, **asked)
    assert [run.scheduled_for for run in runs] == [DAY + 6 * n * HOUR for n in range(5)]
    assert [run.interval_start for run in runs] == [DAY + 6 * n * HOUR for n in range(-1, 4)]
    again = schedules.backfill(session, pipeline.tenant_id, schedule.id, **asked | {"end": DAY + 30 * HOUR})
    assert [run.scheduled_for for run in again] == [DAY + 30 * HOUR]


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        (DAY, DAY - HOUR, "its start before its end"),
        (DAY, datetime(2099, 1, 1, tzinfo=UTC), "ends before now"),
        (DAY + timedelta(minutes=1), DAY + timedelta(minutes=2), "There are none runs"),
        (datetime(2001, 1, 1, tzinfo=UTC), DAY, "more than 1,000"),
    ],
)
def test_a_backfill_of_a_wrong_range_is_refused(
    session: Session, make_schedule: MakeSchedule, settings: Settings, start: datetime, end: datetime, said: str
) -> None:
    schedule = make_schedule()
    with pytest.raises(InputError, match=said):
        schedules.backfill(session, schedule.tenant_id, schedule.id, start=start, end=end, settings=settings)


def test_a_backfill_makes_no_more_runs_wait_than_may(
    session: Session, make_schedule: MakeSchedule, settings: Settings
) -> None:
    schedule, few = make_schedule(), settings.model_copy(update={"tenant_queued_runs": 3})
    with pytest.raises(LimitError, match="5 runs would wait and 3 may"):
        schedules.backfill(session, schedule.tenant_id, schedule.id, start=DAY, end=DAY + 4 * HOUR, settings=few)


def test_a_trigger_that_is_sent_again_makes_one_run(session: Session, pipeline: Pipeline, settings: Settings) -> None:
    runs = [
        schedules.trigger(session, pipeline.tenant_id, "nightly", settings=settings, idempotency_key="k")
        for _ in range(2)
    ]
    assert runs[0].id == runs[1].id
    assert runs[0].kind == "manual"
    other = schedules.trigger(session, pipeline.tenant_id, pipeline.id, settings=settings)
    assert other.id != runs[0].id


def test_one_run_of_a_pipeline_is_under_way_at_a_time(
    maker: sessionmaker[Session], session: Session, pipeline: Pipeline, settings: Settings
) -> None:
    first, second = (
        schedules.trigger(session, pipeline.tenant_id, "nightly", settings=settings, idempotency_key=key).id
        for key in "ab"
    )
    session.commit()
    with maker.begin() as one, maker.begin() as other:
        started = lifecycle.start_queued(one) + lifecycle.start_queued(other)
    assert len(started) == 1
    with maker.begin() as one:
        assert lifecycle.start_queued(one) == []
        run = lifecycle.RUNS.lock(one, started[0])
        assert run is not None
        assert run.definition == pipeline.definition
        lifecycle.end_run(one, run, RunState.SUCCEEDED)
    with maker.begin() as one:
        assert {*started, *lifecycle.start_queued(one)} == {first, second}


def test_runs_start_together_and_in_turns_between_tenants(
    maker: sessionmaker[Session], session: Session, tenant: Tenant, settings: Settings
) -> None:
    def queue(tenant_id: str, name: str) -> str:
        pipeline = Pipeline(id=new_id("pipeline"), tenant_id=tenant_id, name=name, definition={})
        session.add(pipeline)
        session.commit()
        run_id = schedules.trigger(session, tenant_id, name, settings=settings).id
        session.commit()
        return run_id

    mine = [queue(tenant.id, f"mine-{number}") for number in range(4)]
    other = queue(create_tenant(session, "other").id, "theirs")
    sent = list[str]()
    event.listen(maker.kw["bind"], "before_cursor_execute", lambda *given: sent.append(given[2]))
    with maker.begin() as starting:
        assert set(lifecycle.start_queued(starting, most=3)) == {*mine[:2], other}
    num_statements = len(sent)
    sent.clear()
    with maker.begin() as starting:
        assert lifecycle.start_queued(starting) == mine[2:3] + mine[3:]
    assert len(sent) == num_statements, "as many for two runs as for three"


def test_failures_in_a_row_pause_a_schedule_and_a_success_between_does_not(
    session: Session, pipeline: Pipeline, make_schedule: MakeSchedule, settings: Settings
) -> None:
    schedule = make_schedule(max_failures=2)
    ends = [RunState.FAILED, RunState.SUCCEEDED, RunState.FAILED, RunState.FAILED]
    paused = []
    for number, end in enumerate(ends):
        start = DAY + number * HOUR
        [run] = schedules.backfill(session, pipeline.tenant_id, schedule.id, start=start, end=start, settings=settings)
        assert lifecycle.start_queued(session) == [run.id]
        lifecycle.end_run(session, run, end, reason="no")
        session.refresh(schedule)
        paused.append(schedule.pause_reason)
    assert paused == [None, None, None, "2 runs in a row failed"]


def test_a_failed_run_waits_again_when_it_is_resumed_and_no_other_does(
    session: Session, pipeline: Pipeline, settings: Settings
) -> None:
    run = schedules.trigger(session, pipeline.tenant_id, "nightly", settings=settings)
    with pytest.raises(ConflictError, match="'queued'"):
        lifecycle.resume_run(session, pipeline.tenant_id, run.id)
    lifecycle.start_queued(session)
    lifecycle.end_run(session, run, RunState.FAILED, reason="the disk is full")
    assert (run.reason, run.ended_at is None) == ("the disk is full", False)
    resumed = lifecycle.resume_run(session, pipeline.tenant_id, run.id)
    assert (resumed.state, resumed.reason, resumed.ended_at) == ("queued", None, None)
    lifecycle.cancel_run(session, pipeline.tenant_id, run.id, reason="by hand")
    assert run.state == RunState.CANCELLED
    with pytest.raises(IllegalMoveError):
        lifecycle.move_run(session, run, RunState.RUNNING)


def test_a_deleted_schedule_takes_its_waiting_runs_with_it_and_frees_its_name(
    session: Session, pipeline: Pipeline, make_schedule: MakeSchedule, settings: Settings, tenant: Tenant
) -> None:
    schedule = make(session, pipeline, settings)
    [run] = schedules.backfill(session, tenant.id, schedule.id, start=DAY, end=DAY + 24 * HOUR, settings=settings)
    schedules.delete_schedule(session, tenant.id, "nightly")
    session.refresh(run)
    assert (run.state, run.reason) == (RunState.CANCELLED, "its schedule was deleted")
    make(session, pipeline, settings)
    assert session.scalars(select(Run.id)).all() == [run.id], "it stays to be seen"
