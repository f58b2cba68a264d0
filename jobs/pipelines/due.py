"""The sweep that makes the runs of schedules: each exactly once, whoever sweeps and however many do.

A schedule's lock, its runs and its next moment are one transaction, on the database's clock.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from jobs.accounts.windows import zone_of
from jobs.errors import InputError
from jobs.pipelines import lifecycle
from jobs.pipelines.cron import Cron
from jobs.pipelines.planning import PlannedRun, Timetable, plan
from jobs.pipelines.runs import events
from jobs.states import CatchUp, Overlap, RunKind
from jobs.tables import Pipeline, Schedule, Tenant

log = logging.getLogger(__name__)

_SCHEDULES_AT_ONCE = 50


def insert_due_runs(session: Session, *, now: datetime | None = None) -> int:
    """Insert the runs that are due now, by the database, of a bounded number of schedules; return of how many."""
    due = (
        select(Schedule)
        .join(Tenant, Tenant.id == Schedule.tenant_id)
        .where(Schedule.due_at <= (now or func.now()), Schedule.paused_at.is_(None), Schedule.deleted_at.is_(None))
        .where(Tenant.deleted_at.is_(None), Tenant.disabled_at.is_(None))
        .order_by(Schedule.due_at)
        .limit(_SCHEDULES_AT_ONCE)
        .with_for_update(of=Schedule, skip_locked=True, key_share=True)
    )
    schedules = session.scalars(due, execution_options={"populate_existing": True}).all()
    if schedules:
        now = now or session.scalar(select(func.now()))
        assert now is not None
        for schedule in schedules:
            try:
                _move_on(session, schedule, now=now)
            except InputError as error:  # its zone is gone from the database of zones: that holds up nobody else
                schedule.paused_at, schedule.pause_reason = now, error.message
                session.flush()
    return len(schedules)


def timetable_of(schedule: Schedule) -> Timetable:
    """Return what of a schedule says when it runs."""
    return Timetable(
        schedule_id=schedule.id,
        cron=Cron.parse(schedule.cron, zone_of(schedule.time_zone)),
        ends_at=schedule.ends_at,
        jitter_seconds=schedule.jitter_seconds,
        overlap=Overlap(schedule.overlap),
        catch_up=CatchUp(schedule.catch_up),
        catch_up_window=timedelta(seconds=schedule.catch_up_seconds),
    )


def set_next(schedule: Schedule, timetable: Timetable, next_at: datetime | None) -> None:
    """Note when a schedule runs next; None: not any more."""
    schedule.next_at = next_at
    schedule.due_at = None if next_at is None else timetable.due(next_at)


def _move_on(session: Session, schedule: Schedule, *, now: datetime) -> None:
    assert schedule.next_at is not None, "it is due"
    timetable = timetable_of(schedule)
    pipeline = session.get_one(Pipeline, schedule.pipeline_id)
    planned = plan(timetable, schedule.next_at, underway=lifecycle.underway(session, schedule.id), now=now)
    told = schedule.num_skipped >= events.SKIPS
    for each in planned.runs:
        _insert(session, schedule, pipeline, each)
        told = told and schedule.num_skipped > 0
    events.tell_of_skips(session, schedule, told=told)
    set_next(schedule, timetable, planned.next_at)
    session.flush()


def _insert(session: Session, schedule: Schedule, pipeline: Pipeline, planned: PlannedRun) -> None:
    if planned.cancels:
        lifecycle.stop_all(session, schedule.id, reason=f"the run of {planned.scheduled_for:%Y-%m-%d %H:%M} UTC is due")
    run = lifecycle.insert_run(session, pipeline, planned, kind=RunKind.CRON, schedule_id=schedule.id)
    if run is None:
        return
    schedule.num_skipped = 0 if planned.skipped is None else schedule.num_skipped + planned.num_missed
    log.info("run inserted run_id=%s schedule_id=%s for=%s state=%s", run.id, schedule.id, run.scheduled_for, run.state)
