"""Reads the report of a day from rows that exist: runs, their steps' statistics, batches. It reads no file.

What it reads is bounded, however often a pipeline runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Select, select
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
from jobs.database import clock
from jobs.tables import Batch

_MOST_RUNS = 1500
"""Of a day: one each minute, and an hour twice."""
_MOST_STEPS = 2000
"""Of a night, whose statistics are read."""
_MOST_FAILED_STEPS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Night:
    """An earlier night."""

    statistics: Night
    definition: dict[str, Any] | None
    """Of its last run."""


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
        day = days.latest_whole_day(now, zone, next_at=None if next_run is None else next_run.at)
    start, end = days.bounds(day, zone)
    runs = session.scalars(_runs_of(pipeline, start, end).limit(_MOST_RUNS)).all()
    begun = steps.steps_of_each(session, [run.id for run in runs])
    batches = batches_of(session, [step for each in begun.values() for step in each])
    used = steps.used_by_each(session, [run.id for run in runs])
    nights = list(_nights(session, pipeline, before=start, zone=zone))
    tonight = _statistics(session, pipeline, start, end)
    last = next((run.definition for run in reversed(runs) if run.definition is not None), None)
    return Report(
        pipeline_id=pipeline.id,
        pipeline=pipeline.name,
        day=day,
        zone=str(zone),
        runs=[_day_run(run, begun[run.id]) for run in runs],
        used_tokens=sum(tokens for tokens, _ in used.values()),
        cost_picos=sum(picos for _, picos in used.values()),
        cost_before_picos=_cost_of(session, pipeline, day - timedelta(days=1), zone),
        failed_steps=_failed_steps(runs, begun, batches),
        measures=drift.measures(tonight, [night.statistics for night in nights]),
        num_nights=len(nights),
        changed_steps=changed_steps(last, nights[0].definition) if nights else [],
        end=_end_of_open(runs, begun, batches, now=now),
        next_run=next_run,
    )


def next_at_of(session: Session, pipeline: Pipeline) -> tuple[ZoneInfo, datetime | None]:
    """Return the time zone of a pipeline's days, and when its next run is."""
    kept = _schedules_of(session, pipeline)
    next_run = _next_tick(session, kept)
    return days.zone_of_day(kept), None if next_run is None else next_run[1].at


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


def _runs_of(pipeline: Pipeline, start: datetime, end: datetime) -> Select[Run]:
    is_then = (Run.scheduled_for >= start) & (Run.scheduled_for < end)
    return select(Run).where(Run.pipeline_id == pipeline.id, is_then).order_by(Run.scheduled_for, Run.id)


def _cost_of(session: Session, pipeline: Pipeline, day: date, zone: ZoneInfo) -> int:
    start, end = days.bounds(day, zone)
    ids = session.scalars(_runs_of(pipeline, start, end).limit(_MOST_RUNS).with_only_columns(Run.id)).all()
    return sum(picos for _, picos in steps.used_by_each(session, ids).values())


def _day_run(run: Run, begun: Sequence[RunStep]) -> DayRun:
    return DayRun(
        run_id=run.id,
        state=run.state,
        reason=run.reason,
        scheduled_for=run.scheduled_for,
        ended_at=run.ended_at,
        num_rows=begun[0].num_rows if begun else 0,
        num_failed=sum(step.num_failed for step in begun),
    )


def _failed_steps(
    runs: Sequence[Run], begun: dict[str, list[RunStep]], batches: dict[str, Batch]
) -> Sequence[FailedStep]:
    """Return the steps with failed rows, those with most first."""
    found = [step for run in runs for step in begun[run.id] if step.num_failed]
    found.sort(key=lambda step: -step.num_failed)
    return [_failed_step(step, batches.get(step.batch_id or "")) for step in found[:_MOST_FAILED_STEPS]]


def _failed_step(step: RunStep, batch: Batch | None) -> FailedStep:
    statistics = step.statistics or {}
    return FailedStep(
        run_id=step.flow_id,
        step=step.name,
        num_rows=step.num_rows,
        num_failed=step.num_failed,
        codes=statistics.get("codes", {}),
        failed_rows=statistics.get("failed_rows", []),
        rows_file_id=step.rows_file_id,
        failed_rows_file_id=step.failed_rows_file_id,
        batch_id=step.batch_id,
        num_retryable=0 if batch is None or step.done_at is None else batch.num_failed,
    )


def _end_of_open(
    runs: Sequence[Run], begun: dict[str, list[RunStep]], batches: dict[str, Batch], *, now: datetime
) -> FlowEnd:
    """Return the expected end of the run in progress, of which a pipeline has one at a time."""
    for run in runs:
        if run.state == RunState.RUNNING:
            return steps.expected_end(run, begun[run.id], batches, now=now)
    return FlowEnd()


def _nights(session: Session, pipeline: Pipeline, *, before: datetime, zone: ZoneInfo) -> Iterator[_Night]:
    """Yield the last seven days before, newest first, on which a run succeeded."""
    for _ in range(drift.MOST_NIGHTS):
        query = (
            select(Run)
            .where(Run.pipeline_id == pipeline.id, Run.scheduled_for < before)
            .where(Run.state == RunState.SUCCEEDED.value, Run.kind != RunKind.BACKFILL.value)
            .order_by(Run.scheduled_for.desc(), Run.id.desc())
            .limit(1)
        )
        last = session.scalar(query)
        if last is None:
            return
        before, end = days.bounds(days.day_of(last.scheduled_for, zone), zone)
        yield _Night(statistics=_statistics(session, pipeline, before, end), definition=last.definition)


def _statistics(session: Session, pipeline: Pipeline, start: datetime, end: datetime) -> Night:
    """Return the statistics of the steps of a day's runs; a backfill's rows are those of other days."""
    query = (
        select(RunStep.name, RunStep.statistics)
        .join(Run, Run.id == RunStep.flow_id)
        .where(Run.pipeline_id == pipeline.id, Run.scheduled_for >= start, Run.scheduled_for < end)
        .where(Run.kind != RunKind.BACKFILL.value, RunStep.statistics.is_not(None))
        .limit(_MOST_STEPS)
    )
    return night_of((row.name, StepStatistics.of(row.statistics)) for row in session.execute(query))
