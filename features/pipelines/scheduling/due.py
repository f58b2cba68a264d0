"""Due schedules: find them and create their runs, each exactly once with any number of dispatchers.

Locking a schedule, inserting its runs and setting its next time are one transaction, on the database's clock.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Row, and_, func, select, text
from sqlalchemy.orm import Session

from features.pipelines import lifecycle
from features.pipelines.runs import events
from features.pipelines.scheduling.cron import Cron
from features.pipelines.scheduling.planning import Plan, Timetable, plan
from features.pipelines.scheduling.watch import watched_since
from features.pipelines.states import CatchUp, Overlap, RunKind
from features.pipelines.tables import Pipeline, Run, Schedule
from jobs.accounts.windows import zone_of
from jobs.errors import InputError
from jobs.tables import Tenant

log = logging.getLogger(__name__)

_Key = tuple[str | None, datetime]
"""A schedule's id, and the time that a run of it is scheduled for."""
_Found = Row[Schedule, datetime | None]
"""A locked schedule, and when its tenant was enabled again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    """A locked schedule, and the plan of its ticks."""

    schedule: Schedule
    pipeline: Pipeline
    timetable: Timetable
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class DueSchedule:
    """A due schedule."""

    id: str
    tenant_id: str


def is_any_due(session: Session) -> bool:
    """Return whether `find_due` may find a schedule: a poll at rest is cheaper."""
    return bool(session.scalar(_IS_ANY_DUE))


def find_due(
    session: Session, *, at_least: int, aside: Collection[str] = (), now: datetime | None = None
) -> list[DueSchedule]:
    """Return the schedules that are due now by the database's clock, except `aside`, in the order of their due times.

    Return at least `at_least` of them if there are that many, and equally many of each tenant as far as it has them.
    """
    turn = func.row_number().over(partition_by=Schedule.tenant_id, order_by=(Schedule.due_at, Schedule.id))
    due = (
        select(Schedule.id, Schedule.tenant_id, Schedule.due_at, turn.label("turn"))
        .join(Tenant, Tenant.id == Schedule.tenant_id)
        .where(_is_due(now), Schedule.id.not_in(aside))
        .subquery()
    )
    query = select(due).order_by(due.c.turn).fetch(at_least, with_ties=True)
    rows = sorted(session.execute(query), key=lambda row: (row.due_at, row.id))
    return [DueSchedule(id=row.id, tenant_id=row.tenant_id) for row in rows]


def insert_due_runs(session: Session, schedule_ids: Sequence[str], *, now: datetime | None = None) -> set[str]:
    """Insert the runs of these schedules that are due now by the database's clock.

    Return the ids of the processed schedules: another dispatcher may hold the others, or have inserted their runs.
    """
    due = (
        select(Schedule, Tenant.enabled_at)
        .join(Tenant, Tenant.id == Schedule.tenant_id)
        .where(Schedule.id.in_(schedule_ids), _is_due(now))
        .order_by(Schedule.due_at)
        .with_for_update(of=Schedule, skip_locked=True, key_share=True)
    )
    rows = session.execute(due, execution_options={"populate_existing": True}).all()
    if not rows:
        return set()
    now = now or session.scalar(select(func.now()))
    assert now is not None
    since = watched_since(session, now=now)
    due_now = _planned(session, rows, watched_since=since, now=now)
    inserted = _insert(session, due_now)
    with session.no_autoflush:  # the schedules are flushed together at the end
        for each in due_now:
            _move_on(session, each, inserted)
    session.flush()
    return {row.Schedule.id for row in rows}


def timetable_of(schedule: Schedule) -> Timetable:
    """Return the timetable of a schedule."""
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
    """Set when a schedule runs next; None if it never runs again."""
    schedule.next_at = next_at
    schedule.due_at = None if next_at is None else timetable.due(next_at)


def _is_due(now: datetime | None) -> ColumnElement[bool]:
    """Return the condition for due schedules of enabled tenants."""
    is_past = Schedule.due_at <= (now or func.now())
    return and_(
        is_past,
        Schedule.paused_at.is_(None),
        Schedule.deleted_at.is_(None),
        Tenant.deleted_at.is_(None),
        Tenant.disabled_at.is_(None),
    )


def _planned(session: Session, rows: Sequence[_Found], *, watched_since: datetime, now: datetime) -> list[_Due]:
    """Plan the runs of schedules; a schedule that cannot be parsed is paused."""
    schedules = [row.Schedule for row in rows]
    underway = lifecycle.underway(session, [schedule.id for schedule in schedules])
    are_theirs = Pipeline.id.in_({schedule.pipeline_id for schedule in schedules})
    pipelines = {pipeline.id: pipeline for pipeline in session.scalars(select(Pipeline).where(are_theirs))}
    planned = []
    for schedule, enabled_at in rows:
        assert schedule.next_at is not None, "it is due"
        since = watched_since if enabled_at is None else max(watched_since, enabled_at)
        try:
            timetable = timetable_of(schedule)
        except InputError as error:  # such as a zone that was removed from tzdata: other schedules must not wait
            schedule.paused_at, schedule.pause_reason = now, error.message
            continue
        runs = plan(timetable, schedule.next_at, underway=underway[schedule.id], watched_since=since, now=now)
        planned.append(
            _Due(schedule=schedule, pipeline=pipelines[schedule.pipeline_id], timetable=timetable, plan=runs)
        )
    return planned


def _insert(session: Session, due: Sequence[_Due]) -> dict[_Key, Run]:
    new = [
        lifecycle.NewRun(pipeline=each.pipeline, planned=planned, kind=RunKind.CRON, schedule_id=each.schedule.id)
        for each in due
        for planned in each.plan.runs
    ]
    return {(run.schedule_id, run.scheduled_for): run for run in lifecycle.insert_runs(session, new)}


def _move_on(session: Session, due: _Due, inserted: Mapping[_Key, Run]) -> None:
    """Advance a schedule past its inserted runs, which stop other runs if its overlap rule requires it."""
    schedule = due.schedule
    new = [(planned, inserted.get((schedule.id, planned.scheduled_for))) for planned in due.plan.runs]
    is_reported = schedule.num_skipped >= events.SKIPS
    to_come = {run.id for _, run in new if run is not None}
    for planned, run in new:
        if run is None:
            continue
        if planned.cancels:
            reason = f"the run of {planned.scheduled_for:%Y-%m-%d %H:%M} UTC is due"
            lifecycle.stop_all(session, schedule.id, but=to_come, reason=reason)
        to_come.remove(run.id)
        schedule.num_skipped = 0 if planned.skipped is None else schedule.num_skipped + planned.num_missed
        is_reported = is_reported and schedule.num_skipped > 0
        log.info("run inserted run_id=%s schedule_id=%s for=%s", run.id, schedule.id, run.scheduled_for)
    events.tell_of_skips(session, schedule, is_reported=is_reported)
    set_next(schedule, due.timetable, due.plan.next_at)


_IS_ANY_DUE = text(
    "SELECT EXISTS (SELECT FROM schedule WHERE due_at <= now() AND paused_at IS NULL AND deleted_at IS NULL)"
)
