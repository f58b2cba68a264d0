"""Reads the report of a day from rows that exist: runs, their steps' statistics, batches. It reads no file.

What it reads is bounded, however often a pipeline runs, and it holds the statistics of a few steps at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Select, case, func, select
from sqlalchemy.orm import Session

from features.pipelines import steps
from features.pipelines.definitions import get_pipeline
from features.pipelines.scheduling import schedules
from features.pipelines.states import RunKind, RunState
from features.pipelines.tables import Pipeline, Run, RunStep, Schedule
from features.reports import days, drift
from features.reports.report import DayRun, FailedStep, NextRun, Report, changed_steps, usual_end
from features.reports.statistics import Night, StepStatistics, night_of
from flows.ends import FlowEnd
from flows.nodes import batches_of
from jobs import files
from jobs.database import clock
from jobs.settings import MIB
from jobs.tables import Batch, File

_MOST_RUNS = 1500
"""Of a day, the last ones: one each minute, and an hour twice."""
_MOST_STEPS = 2000
"""Of a night, the last ones, whose statistics are read."""
_MOST_STATISTICS_BYTES = 8 * MIB
"""Of a night, as stored; the last steps within them are read."""
_STEPS_AT_ONCE = 20
_MOST_FAILED_STEPS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Night:
    """An earlier night."""

    statistics: Night
    last_run_id: str


def read_report(session: Session, tenant_id: str, pipeline_id: str, day: date | None = None) -> Report:
    """Return the report of a pipeline, by its id or name, for a day; by default the latest whole one.

    Raise NotFoundError, or InputError for a day outside this century.
    """
    if day is not None:
        days.check_day(day)
    pipeline = get_pipeline(session, tenant_id, pipeline_id)
    kept = _schedules_of(session, pipeline)
    zone, now = days.zone_of_day(kept), clock(session)
    next_run = _next_run(session, kept)
    if day is None:
        day = latest_day(session, pipeline, now)
    start, end = days.bounds(day, zone)
    runs = _runs_of(session, pipeline, start, end)
    ids = [run.run_id for run in runs]
    used_tokens, cost_picos = _used(session, ids)
    nights = list(_nights(session, pipeline, before=start, zone=zone))
    tonight = _statistics(session, pipeline, start, end)
    return Report(
        pipeline_id=pipeline.id,
        pipeline=pipeline.name,
        day=day,
        zone=str(zone),
        runs=runs,
        used_tokens=used_tokens,
        cost_picos=cost_picos,
        cost_before_picos=_cost_of(session, pipeline, day - days.DAY, zone),
        failed_steps=_failed_steps(session, pipeline, ids),
        measures=drift.measures(tonight, [night.statistics for night in nights]),
        num_nights=len(nights),
        changed_steps=_changed_steps(session, ids, nights[0].last_run_id) if nights else [],
        end=_end_of_open(session, runs, now=now),
        next_run=next_run,
    )


def zone_of(session: Session, pipeline: Pipeline) -> ZoneInfo:
    """Return the time zone of a pipeline's days."""
    return days.zone_of_day(_schedules_of(session, pipeline))


def latest_day(session: Session, pipeline: Pipeline, now: datetime) -> date:
    """Return the latest day of a pipeline whose runs were all due."""
    kept = _schedules_of(session, pipeline)
    zone, following = days.zone_of_day(kept), _next_tick(session, kept)
    next_at = None if following is None else following[1].at
    has_run = has_run_on(session, pipeline, days.day_of(now, zone), zone)
    return days.latest_whole_day(now, zone, next_at=next_at, has_run=has_run)


def has_run_on(
    session: Session, pipeline: Pipeline, day: date, zone: ZoneInfo, *, since: datetime | None = None
) -> bool:
    """Return whether a pipeline has a run of a day, since a time if one is given."""
    start, end = days.bounds(day, zone)
    first = start if since is None else max(start, since)
    return bool(session.scalar(select(_latest_of(pipeline, first, end).with_only_columns(Run.id).exists())))


def _schedules_of(session: Session, pipeline: Pipeline) -> Sequence[Schedule]:
    theirs = (Schedule.pipeline_id == pipeline.id) & Schedule.deleted_at.is_(None)
    return session.scalars(select(Schedule).where(theirs).order_by(Schedule.created_at, Schedule.id)).all()


def _next_tick(session: Session, kept: Sequence[Schedule]) -> tuple[Schedule, Any] | None:
    ticks = [(schedule, tick) for schedule in kept for tick in schedules.upcoming(session, schedule, number=1)]
    return min(ticks, key=lambda each: each[1].at, default=None)


def _next_run(session: Session, kept: Sequence[Schedule]) -> NextRun | None:
    first = _next_tick(session, kept)
    if first is None:
        return None
    schedule, tick = first
    query = (
        select(Run.ended_at, Run.scheduled_for)
        .where(Run.schedule_id == schedule.id, Run.kind == RunKind.CRON.value, Run.state == RunState.SUCCEEDED.value)
        .order_by(Run.scheduled_for.desc())
        .limit(drift.MOST_NIGHTS)
    )
    durations = [row.ended_at - row.scheduled_for for row in session.execute(query) if row.ended_at is not None]
    return NextRun(schedule=schedule.name, at=tick.at, local=tick.local, end=usual_end(tick.at, durations))


def _runs_of(session: Session, pipeline: Pipeline, start: datetime, end: datetime) -> list[DayRun]:
    """Return the runs of a day in the order of their times, without their definitions."""
    query = (
        _latest_of(pipeline, start, end)
        .with_only_columns(Run.id, Run.state, Run.reason, Run.scheduled_for, Run.ended_at)
        .limit(_MOST_RUNS)
    )
    found = list(reversed(session.execute(query).all()))
    counts = _counts(session, [run.id for run in found])
    return [
        DayRun(
            run_id=run.id,
            state=run.state,
            reason=run.reason,
            scheduled_for=run.scheduled_for,
            ended_at=run.ended_at,
            num_rows=counts.get(run.id, (0, 0))[0],
            num_failed=counts.get(run.id, (0, 0))[1],
        )
        for run in found
    ]


def _latest_of(pipeline: Pipeline, start: datetime, end: datetime) -> Select[Run]:
    is_then = (Run.scheduled_for >= start) & (Run.scheduled_for < end)
    newest = (Run.scheduled_for.desc(), Run.id.desc())
    return select(Run).where(Run.pipeline_id == pipeline.id, is_then).order_by(*newest)


def _counts(session: Session, ids: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return by run the rows that its first step read, and the rows of all its steps without an answer."""
    num_read = func.sum(case((RunStep.number == 0, RunStep.num_rows), else_=0))
    query = select(RunStep.flow_id, num_read, func.sum(RunStep.num_failed)).where(RunStep.flow_id.in_(ids))
    return {
        run_id: (int(rows), int(failed)) for run_id, rows, failed in session.execute(query.group_by(RunStep.flow_id))
    }


def _used(session: Session, ids: Sequence[str]) -> tuple[int, int]:
    """Return the tokens and pico-units of currency that the batches of runs have used, as `steps.used` of one."""
    query = select(func.sum(Batch.input_tokens + Batch.output_tokens), func.sum(Batch.cost_picos))
    tokens, picos = session.execute(query.where(Batch.run_id.in_(ids))).one()
    return int(tokens or 0), int(picos or 0)


def _cost_of(session: Session, pipeline: Pipeline, day: date, zone: ZoneInfo) -> int:
    start, end = days.bounds(day, zone)
    ids = session.scalars(_latest_of(pipeline, start, end).with_only_columns(Run.id).limit(_MOST_RUNS)).all()
    return _used(session, ids)[1]


def _changed_steps(session: Session, ids: Sequence[str], before_id: str) -> list[str]:
    """Return the steps of the last run that began which differ from those of an earlier run."""
    began = select(Run.definition).where(Run.id.in_(ids), Run.definition.is_not(None))
    last = session.scalar(began.order_by(Run.scheduled_for.desc(), Run.id.desc()).limit(1))
    return changed_steps(last, session.scalar(select(Run.definition).where(Run.id == before_id)))


def _failed_steps(session: Session, pipeline: Pipeline, ids: Sequence[str]) -> Sequence[FailedStep]:
    """Return the steps with failed rows, those with most first."""
    query = (
        select(
            RunStep.flow_id.label("run_id"),
            RunStep.name.label("step"),
            RunStep.num_rows,
            RunStep.num_failed,
            RunStep.statistics["codes"].label("codes"),
            RunStep.statistics["failed_rows"].label("failed_rows"),
            RunStep.rows_file_id,
            RunStep.failed_rows_file_id,
            RunStep.batch_id,
            RunStep.done_at,
        )
        .where(RunStep.flow_id.in_(ids), RunStep.num_failed > 0)
        .order_by(RunStep.num_failed.desc(), RunStep.flow_id, RunStep.number)
        .limit(_MOST_FAILED_STEPS)
    )
    found = [row._asdict() for row in session.execute(query)]
    done = [row["batch_id"] for row in found if row["batch_id"] is not None and row["done_at"] is not None]
    retryable = _retryable(session, pipeline.tenant_id, done)
    return [_failed_step(row, retryable.get(row["batch_id"], 0)) for row in found]


def _failed_step(row: Mapping[str, Any], num_retryable: int) -> FailedStep:
    values = {name: value for name, value in row.items() if name != "done_at"}
    values |= {"codes": row["codes"] or {}, "failed_rows": row["failed_rows"] or []}
    return FailedStep(**values, num_retryable=num_retryable)


def _retryable(session: Session, tenant_id: str, batch_ids: Sequence[str]) -> dict[str, int]:
    """Return the failed lines of batches whose files are kept, as a retry reads them."""
    input_id = func.coalesce(Batch.source_file_id, Batch.input_file_id)
    query = select(Batch.id, Batch.num_failed, Batch.error_file_id, input_id.label("input_id"))
    batches = session.execute(query.where(Batch.id.in_(batch_ids), Batch.deleted_at.is_(None))).all()
    needed = {file_id for batch in batches for file_id in (batch.error_file_id, batch.input_id)}
    is_kept = File.id.in_(needed) & (File.tenant_id == tenant_id) & files.is_there()
    kept = set(session.scalars(select(File.id).where(is_kept)))
    return {batch.id: batch.num_failed for batch in batches if {batch.error_file_id, batch.input_id} <= kept}


def _end_of_open(session: Session, runs: Sequence[DayRun], *, now: datetime) -> FlowEnd:
    """Return the expected end of the run in progress, of which a pipeline has one at a time."""
    for run_id in (run.run_id for run in runs if run.state == RunState.RUNNING):
        run = session.get_one(Run, run_id)
        begun = steps.steps_of(session, run_id)
        return steps.expected_end(run, begun, batches_of(session, begun), now=now)
    return FlowEnd()


def _nights(session: Session, pipeline: Pipeline, *, before: datetime, zone: ZoneInfo) -> Iterator[_Night]:
    """Yield the last seven days before, newest first, on which a run succeeded."""
    for _ in range(drift.MOST_NIGHTS):
        query = (
            select(Run.id, Run.scheduled_for)
            .where(Run.pipeline_id == pipeline.id, Run.scheduled_for < before)
            .where(Run.state == RunState.SUCCEEDED.value, Run.kind != RunKind.BACKFILL.value)
            .order_by(Run.scheduled_for.desc(), Run.id.desc())
            .limit(1)
        )
        last = session.execute(query).one_or_none()
        if last is None:
            return
        before, end = days.bounds(days.day_of(last.scheduled_for, zone), zone)
        yield _Night(statistics=_statistics(session, pipeline, before, end), last_run_id=last.id)


def _statistics(session: Session, pipeline: Pipeline, start: datetime, end: datetime) -> Night:
    """Return the statistics of the steps of a day's runs; a backfill's rows are those of other days."""
    query = (
        select(RunStep.name, RunStep.statistics, func.pg_column_size(RunStep.statistics).label("size"))
        .join(Run, Run.id == RunStep.flow_id)
        .where(Run.pipeline_id == pipeline.id, Run.scheduled_for >= start, Run.scheduled_for < end)
        .where(Run.kind != RunKind.BACKFILL.value, RunStep.statistics.is_not(None))
        .order_by(Run.scheduled_for.desc(), Run.id.desc(), RunStep.number)
        .limit(_MOST_STEPS)
    )
    with session.execute(query, execution_options={"yield_per": _STEPS_AT_ONCE}) as rows:
        return night_of((row.name, StepStatistics.of(row.statistics)) for row in _within_budget(rows))


def _within_budget(rows: Iterable[Any]) -> Iterator[Any]:
    """Yield rows up to so many bytes of statistics, and at least one."""
    left = _MOST_STATISTICS_BYTES
    for row in rows:
        yield row
        left -= row.size
        if left <= 0:
            return
