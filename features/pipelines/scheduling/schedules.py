"""A tenant's schedules: create, read, list, change, pause, resume, delete; trigger and backfill runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from features.pipelines import lifecycle
from features.pipelines.definitions import get_pipeline
from features.pipelines.named import get_named, hold_name, hold_room, lock_named, of_tenant
from features.pipelines.names import check_name
from features.pipelines.scheduling.cron import Cron, Tick
from features.pipelines.scheduling.due import set_next, timetable_of
from features.pipelines.scheduling.planning import PlannedRun
from features.pipelines.settings import PipelineSettings
from features.pipelines.states import CatchUp, Overlap, RunKind, RunState
from features.pipelines.tables import Run, Schedule
from jobs.accounts.windows import zone_of
from jobs.database import advisory_lock
from jobs.errors import ConflictError, InputError, LimitError
from jobs.ids import new_id
from jobs.pagination import Page, read_page

MAX_JITTER_SECONDS = 3600
MAX_CATCH_UP_SECONDS = 7 * 86_400
MAX_FAILURES = 1000
MAX_LATE_AFTER_SECONDS = 31 * 86_400
MAX_BACKFILL = 1000
_FIRST, _LAST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
_SAYS_WHEN = {"cron", "time_zone", "starts_at", "ends_at", "jitter_seconds"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleWish:
    """The values of a new or changed schedule."""

    name: str
    cron: str
    time_zone: str = "UTC"
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    """Inclusive."""
    jitter_seconds: int = 0
    overlap: Overlap = Overlap.SKIP
    catch_up: CatchUp = CatchUp.LATEST
    catch_up_seconds: int = 6 * 3600
    """How late a run may still be caught up."""
    max_failures: int | None = None
    """Failures in a row that pause it; None: unlimited."""
    late_after_seconds: int | None = None
    """A run that has not ended this long after its due time is late; None: never."""


def check_wish(wish: ScheduleWish) -> Cron:
    """Return the cron expression of a valid schedule. Raise InputError."""
    check_name(wish.name)
    cron = Cron.parse(wish.cron, zone_of(wish.time_zone))
    _check_range("jitter_seconds", wish.jitter_seconds, 0, MAX_JITTER_SECONDS)
    _check_range("catch_up_seconds", wish.catch_up_seconds, 0, MAX_CATCH_UP_SECONDS)
    if wish.max_failures is not None:
        _check_range("max_failures", wish.max_failures, 1, MAX_FAILURES)
    if wish.late_after_seconds is not None:
        _check_range("late_after_seconds", wish.late_after_seconds, 1, MAX_LATE_AFTER_SECONDS)
    for name in ("starts_at", "ends_at"):
        moment = getattr(wish, name)
        if moment is not None and not _FIRST <= moment <= _LAST:
            raise InputError(f"{name} is {moment.isoformat()}; give a time between 2000 and 2100", param=name)
    return cron


def create_schedule(
    session: Session, tenant_id: str, pipeline_id: str, wish: ScheduleWish, settings: PipelineSettings
) -> Schedule:
    """Create a schedule of a pipeline, from now on. Raise InputError, NotFoundError, ConflictError or LimitError."""
    check_wish(wish)
    pipeline = get_pipeline(session, tenant_id, pipeline_id)
    hold_room(session, Schedule, tenant_id, wish.name, settings)
    schedule = Schedule(id=new_id("schedule"), tenant_id=tenant_id, pipeline_id=pipeline.id)
    _write(schedule, {field.name: getattr(wish, field.name) for field in fields(wish)})
    _begin(session, schedule)
    session.add(schedule)
    session.flush()
    session.refresh(schedule)
    return schedule


def get_schedule(session: Session, tenant_id: str, schedule_id: str) -> Schedule:
    """Return a schedule of this tenant, by its id or its name. Raise NotFoundError."""
    return get_named(session, Schedule, tenant_id, schedule_id)


def list_schedules(
    session: Session, tenant_id: str, *, pipeline_id: str | None = None, after: str | None = None, limit: int = 20
) -> Page[Schedule]:
    """Return a page of a tenant's schedules, newest first. Raise InputError on an unknown `after`."""
    query = select(Schedule).where(of_tenant(Schedule, tenant_id))
    if pipeline_id is not None:
        query = query.where(Schedule.pipeline_id == pipeline_id)
    return read_page(session, query, table=Schedule, tenant_id=tenant_id, after=after, limit=limit)


def change_schedule(session: Session, tenant_id: str, schedule_id: str, changes: Mapping[str, Any]) -> Schedule:
    """Change fields of a schedule; changes of its times count from now. Raise as `create_schedule`."""
    schedule = lock_named(session, Schedule, tenant_id, schedule_id)
    values = {field.name: getattr(schedule, field.name) for field in fields(ScheduleWish)} | dict(changes)
    check_wish(ScheduleWish(**values))
    if values["name"] != schedule.name:
        hold_name(session, Schedule, tenant_id, values["name"])
    is_retimed = any(values[name] != getattr(schedule, name) for name in _SAYS_WHEN)
    _write(schedule, changes)
    if is_retimed:
        _begin(session, schedule)
    return _written(session, schedule)


def pause_schedule(session: Session, tenant_id: str, schedule_id: str) -> Schedule:
    """Pause a schedule; existing runs continue. Repeating it is no error."""
    schedule = lock_named(session, Schedule, tenant_id, schedule_id)
    if schedule.paused_at is None:
        schedule.paused_at, schedule.pause_reason = _now(session), None
    return _written(session, schedule)


def resume_schedule(session: Session, tenant_id: str, schedule_id: str) -> Schedule:
    """Resume a schedule from now; missed runs are not caught up. No error if it is not paused."""
    schedule = lock_named(session, Schedule, tenant_id, schedule_id)
    if schedule.paused_at is not None:
        schedule.paused_at = schedule.pause_reason = None
        schedule.num_failures = 0
        _begin(session, schedule)
    return _written(session, schedule)


def delete_schedule(session: Session, tenant_id: str, schedule_id: str) -> Schedule:
    """Delete a schedule; its queued runs are cancelled, a run in progress continues, and all stay visible."""
    schedule = lock_named(session, Schedule, tenant_id, schedule_id)
    schedule.deleted_at = _now(session)
    lifecycle.stop_queued(session, Run.schedule_id == schedule.id, reason="its schedule was deleted")
    return _written(session, schedule)


def upcoming(session: Session, schedule: Schedule, *, number: int) -> list[Tick]:
    """Return the next ticks of a schedule, without its jitter; none if it is paused or over."""
    if schedule.next_at is None or schedule.paused_at is not None:
        return []
    # Start just before its next run, so that it is included even if the dispatcher is late.
    start = max(schedule.next_at - timedelta(seconds=1), _FIRST)
    return timetable_of(schedule).cron.upcoming(start, number=number, until=schedule.ends_at)


def backfill(
    session: Session,
    tenant_id: str,
    schedule_id: str,
    *,
    start: datetime,
    end: datetime,
    settings: PipelineSettings,
    api_key_id: str | None = None,
) -> list[Run]:
    """Queue a run for each tick from `start` to `end`, both inclusive, that has no such run; return the new ones.

    Raise InputError if the range is not past or has too many ticks, LimitError if too many runs are queued.
    """
    schedule = lock_named(session, Schedule, tenant_id, schedule_id)
    now = _now(session)
    if not _FIRST <= start <= end <= now:
        raise InputError(
            f"start is {start.isoformat()} and end is {end.isoformat()}; give a range that starts after 1999, ends "
            f"before now, {now:%Y-%m-%dT%H:%M:%SZ}, and has its start before its end",
            param="start",
        )
    cron = timetable_of(schedule).cron
    before = start - timedelta(microseconds=1)
    ticks = list(_first_of(takewhile(lambda tick: tick <= end, cron.all_after(before)), MAX_BACKFILL + 1))
    if not ticks or len(ticks) > MAX_BACKFILL:
        number = "none" if not ticks else f"more than {MAX_BACKFILL:,}"
        raise InputError(
            f"There are {number} runs of {schedule.cron!r} in this range; give one with 1 to {MAX_BACKFILL:,}.",
            param="end",
        )
    pipeline = get_pipeline(session, tenant_id, schedule.pipeline_id)
    starts = [cron.before(ticks[0]) or ticks[0], *ticks]
    runs = [
        lifecycle.NewRun(
            pipeline=pipeline,
            planned=PlannedRun(scheduled_for=tick, interval_start=begin),
            kind=RunKind.BACKFILL,
            schedule_id=schedule.id,
            api_key_id=api_key_id,
        )
        for begin, tick in zip(starts, ticks, strict=False)
    ]
    new = lifecycle.insert_runs(session, runs)
    check_queue(session, tenant_id, settings)
    return sorted(new, key=lambda run: run.scheduled_for)


def trigger(
    session: Session,
    tenant_id: str,
    pipeline_id: str,
    *,
    settings: PipelineSettings,
    schedule_id: str | None = None,
    interval_start: datetime | None = None,
    api_key_id: str | None = None,
    idempotency_key: str | None = None,
) -> Run:
    """Queue a run of a pipeline now; a repeated call with the same idempotency key returns the same run.

    By default its interval begins where that of the last successful run ended. Raise NotFoundError or LimitError.
    """
    if idempotency_key is not None:
        advisory_lock(session, f"run {tenant_id} {idempotency_key}")
        mine = (Run.tenant_id == tenant_id) & (Run.idempotency_key == idempotency_key)
        earlier = session.scalar(select(Run).where(mine))
        if earlier is not None:
            return earlier
    pipeline = get_pipeline(session, tenant_id, pipeline_id)
    now = _now(session)
    begin = interval_start or _last_end(session, pipeline.id) or min(pipeline.created_at, now)
    if not _FIRST <= begin <= now:
        raise InputError(f"interval_start is {begin.isoformat()}; give a past time", param="interval_start")
    new = lifecycle.NewRun(
        pipeline=pipeline,
        planned=PlannedRun(scheduled_for=now, interval_start=begin),
        kind=RunKind.MANUAL,
        schedule_id=schedule_id,
        api_key_id=api_key_id,
        idempotency_key=idempotency_key,
    )
    run = lifecycle.insert_run(session, new)
    if run is None:
        raise ConflictError("Another run of this schedule was triggered at the same moment; send the request again.")
    check_queue(session, tenant_id, settings)
    return run


def check_queue(session: Session, tenant_id: str, settings: PipelineSettings) -> None:
    """Raise LimitError if a tenant has more queued runs than allowed; call it after queuing more."""
    advisory_lock(session, f"runs {tenant_id}")
    waiting = (Run.tenant_id == tenant_id) & (Run.state == RunState.QUEUED.value)
    queued = session.scalar(select(func.count()).select_from(Run).where(waiting)) or 0
    if queued > settings.tenant_queued_runs:
        raise LimitError(
            f"{queued:,} runs would wait and {settings.tenant_queued_runs:,} may. Wait for some to "
            "end, cancel some, or request fewer.",
            code="too_many_queued_runs",
        )


def _first_of(ticks: Any, number: int) -> Any:
    return (tick for tick, _ in zip(ticks, range(number), strict=False))


def _last_end(session: Session, pipeline_id: str) -> datetime | None:
    ended = (Run.pipeline_id == pipeline_id) & (Run.state == RunState.SUCCEEDED.value)
    return session.scalar(select(func.max(Run.interval_end)).where(ended))


def _write(schedule: Schedule, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(schedule, name, value.value if isinstance(value, (Overlap, CatchUp)) else value)


def _begin(session: Session, schedule: Schedule) -> None:
    """Set the next run of a schedule from now on. Raise InputError if it would never run."""
    timetable = timetable_of(schedule)
    next_at = timetable.first(starts_at=schedule.starts_at, now=_now(session))
    if next_at is None:
        raise InputError(
            f"The schedule would never run: {schedule.cron!r} has no time from now on and before its ends_at. Give a "
            "later end, or none.",
            param="ends_at",
        )
    set_next(schedule, timetable, next_at)


def _written(session: Session, schedule: Schedule) -> Schedule:
    schedule.updated_at = _now(session)
    session.flush()
    session.refresh(schedule)
    return schedule


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InputError(f"{name} is {value}; give {low} to {high}", param=name)


def _now(session: Session) -> datetime:
    now: datetime | None = session.scalar(select(func.now()))
    assert now is not None
    return now
