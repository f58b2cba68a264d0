"""Response objects of `/v1/pipelines`, `/v1/schedules` and `/v1/runs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from api.schemas.wire import (
    DeletedObject,
    ListedObject,
    Page,
    WireModel,
    unix_seconds,
    unix_seconds_or_none,
    unix_seconds_up,
)
from features.pipelines.preview import Preview
from features.pipelines.scheduling.cron import Tick
from features.pipelines.states import CatchUp, Overlap, RunKind, RunState
from features.pipelines.tables import Pipeline, Run, RunStep, Schedule
from flows.ends import FlowEnd
from jobs.accounts.money import in_currency, rounded_micros
from jobs.accounts.prices import Prices
from jobs.counted import counted


class PipelineObject(ListedObject):
    object: Literal["pipeline"] = "pipeline"
    name: str
    version: int
    """Version of the definition: starts at 1 and increases with each change."""
    steps: list[dict[str, Any]]
    """The steps as given."""
    max_tokens: int | None
    """Limit for all batches of a run."""
    max_cost: str | None
    """The same in units of currency."""
    created_at: int
    updated_at: int

    @classmethod
    def of(cls, pipeline: Pipeline) -> Self:
        return cls(
            id=pipeline.id,
            name=pipeline.name,
            version=pipeline.version,
            steps=pipeline.definition["steps"],
            max_tokens=pipeline.definition.get("max_tokens"),
            max_cost=pipeline.definition.get("max_cost"),
            created_at=unix_seconds(pipeline.created_at),
            updated_at=unix_seconds(pipeline.updated_at),
        )


class PipelinePage(Page[PipelineObject]):
    """Newest first."""


class NextRun(WireModel):
    at: int
    """Without the schedule's jitter."""
    utc: str
    local: str
    """In the local time of its time zone."""
    note: str | None
    """The clock change before it, if any."""

    @classmethod
    def of(cls, tick: Tick) -> Self:
        return cls(
            at=unix_seconds(tick.at), utc=f"{tick.at:%Y-%m-%dT%H:%M:%SZ}", local=tick.local.isoformat(), note=tick.note
        )


class ScheduleObject(ListedObject):
    object: Literal["schedule"] = "schedule"
    pipeline_id: str
    name: str
    cron: str
    time_zone: str
    starts_at: int | None
    ends_at: int | None
    jitter_seconds: int
    overlap: Overlap
    catch_up: CatchUp
    catch_up_seconds: int
    max_failures: int | None
    late_after_seconds: int | None
    """A run that has not ended this long after its `scheduled_for` is late."""
    paused_at: int | None
    """Null while it runs."""
    pause_reason: str | None
    """Null if a user paused it."""
    num_failures: int
    """The latest runs in a row that failed."""
    num_skipped: int
    """The latest runs in a row that were skipped."""
    next_runs: list[NextRun]
    """The next five, in a list only the first; empty while it is paused, or if there is none any more."""
    created_at: int
    updated_at: int

    @classmethod
    def of(cls, schedule: Schedule, ticks: Sequence[Tick]) -> Self:
        return cls(
            id=schedule.id,
            pipeline_id=schedule.pipeline_id,
            name=schedule.name,
            cron=schedule.cron,
            time_zone=schedule.time_zone,
            starts_at=unix_seconds_or_none(schedule.starts_at),
            ends_at=unix_seconds_or_none(schedule.ends_at),
            jitter_seconds=schedule.jitter_seconds,
            overlap=Overlap(schedule.overlap),
            catch_up=CatchUp(schedule.catch_up),
            catch_up_seconds=schedule.catch_up_seconds,
            max_failures=schedule.max_failures,
            late_after_seconds=schedule.late_after_seconds,
            paused_at=unix_seconds_or_none(schedule.paused_at),
            pause_reason=schedule.pause_reason,
            num_failures=schedule.num_failures,
            num_skipped=schedule.num_skipped,
            next_runs=[NextRun.of(tick) for tick in ticks],
            created_at=unix_seconds(schedule.created_at),
            updated_at=unix_seconds(schedule.updated_at),
        )


class SchedulePage(Page[ScheduleObject]):
    """Newest first."""


class OutputFile(WireModel):
    key: str
    """In the store of the step's output."""
    rows: int
    bytes: int


class StepObject(WireModel):
    name: str
    status: Literal["in_progress", "done"]
    rows: int
    failed: int
    """Rows without an answer once it is done; before, rows that could not be rendered."""
    batch_id: str | None
    """Null if none of its rows became a line."""
    rows_file_id: str | None
    """The file with its rows as they were read."""
    failed_rows_file_id: str | None
    """The file with its rows without an answer: their columns, and why in `error`; null if there are none."""
    files: list[OutputFile]
    """Its published files."""

    @classmethod
    def of(cls, step: RunStep) -> Self:
        return cls(
            name=step.name,
            status="in_progress" if step.done_at is None else "done",
            rows=step.num_rows,
            failed=step.num_failed,
            batch_id=step.batch_id,
            rows_file_id=step.rows_file_id,
            failed_rows_file_id=step.failed_rows_file_id,
            files=[OutputFile(**file) for file in step.published or []],
        )


class RunObject(ListedObject):
    object: Literal["run"] = "run"
    pipeline_id: str
    schedule_id: str | None
    kind: RunKind
    status: RunState
    reason: str | None
    """Why it failed, was skipped or cancelled; while it runs, the error for which it is retried."""
    error_code: str | None
    """The code of its error, if that has one, such as `template_cpu_exceeded`."""
    scheduled_for: int
    interval_start: int
    interval_end: int
    num_missed: int
    """How many runs a skipped one represents."""
    steps: list[StepObject]
    """The steps that have begun."""
    total_tokens: int
    """Tokens of its batches."""
    cost_micros: int
    created_at: int
    started_at: int | None
    ended_at: int | None
    late_at: int | None
    """When it was reported late: it had not ended in the time that its schedule allows."""
    eta: int | None
    """When it is expected to end, by its own pace so far; null while unknown, and after its end."""
    eta_earliest: int | None
    """With `eta_latest` the range of the end by its pace; null if `eta` is. How often it held: docs/flows.md."""
    eta_latest: int | None

    @classmethod
    def of(cls, run: Run, steps: Sequence[RunStep], used: tuple[int, int], *, end: FlowEnd) -> Self:
        tokens, picos = used
        return cls(
            id=run.id,
            pipeline_id=run.pipeline_id,
            schedule_id=run.schedule_id,
            kind=RunKind(run.kind),
            status=RunState(run.state),
            reason=run.reason,
            error_code=run.error_code,
            scheduled_for=unix_seconds(run.scheduled_for),
            interval_start=unix_seconds(run.interval_start),
            interval_end=unix_seconds(run.interval_end),
            num_missed=run.num_missed,
            steps=[StepObject.of(step) for step in steps],
            total_tokens=tokens,
            cost_micros=rounded_micros(picos),
            created_at=unix_seconds(run.created_at),
            started_at=unix_seconds_or_none(run.started_at),
            ended_at=unix_seconds_or_none(run.ended_at),
            late_at=unix_seconds_or_none(run.late_at),
            eta=unix_seconds_up(end.expected_at),
            eta_earliest=unix_seconds_up(end.earliest_at),
            eta_latest=unix_seconds_up(end.latest_at),
        )


class RunPage(Page[RunObject]):
    """Newest first."""


class BackfillObject(WireModel):
    object: Literal["backfill"] = "backfill"
    runs: list[str]
    """Ids of the new runs, in the order of their times."""


class DeletedPipeline(DeletedObject):
    object: Literal["pipeline"] = "pipeline"


class DeletedSchedule(DeletedObject):
    object: Literal["schedule"] = "schedule"


class DeletedRun(DeletedObject):
    object: Literal["run"] = "run"


_MAX_NOTES = 3


class PreviewObject(WireModel):
    object: Literal["pipeline.preview"] = "pipeline.preview"
    lines: list[dict[str, Any]]
    """The first three lines that its first step would send."""
    rows: int
    """Rows in the preview, at most 1,000; the following fields are for these."""
    failed: int
    """Rows that cannot be rendered."""
    has_more: bool
    files: int
    """All files that match its source now."""
    estimated_input_tokens: int
    estimated_output_tokens: int
    """The maximum."""
    cost_micros: int
    summary: str
    """The preview as sentences."""

    @classmethod
    def of(cls, preview: Preview, prices: Prices, *, currency: str) -> Self:
        tokens = preview.estimate
        picos = prices.cost_picos(
            input_tokens=tokens.estimated_input_tokens, output_tokens=tokens.estimated_output_tokens
        )
        which = "Its first" if preview.has_more else "Together"
        failed = f" {preview.num_failed:,} of them cannot be rendered: {preview.first_error}."
        summary = (
            f"{counted(preview.num_files, 'file')} of {preview.size_bytes:,} bytes. {which} "
            f"{counted(preview.num_rows, 'row')}: about {tokens.estimated_input_tokens:,} tokens, and at most "
            f"{tokens.estimated_output_tokens:,} of answers, {in_currency(picos)} {currency}."
            f"{failed if preview.num_failed else ''}{_noted(preview.notes)}"
        )
        return cls(
            lines=preview.lines,
            rows=preview.num_rows,
            failed=preview.num_failed,
            has_more=preview.has_more,
            files=preview.num_files,
            estimated_input_tokens=tokens.estimated_input_tokens,
            estimated_output_tokens=tokens.estimated_output_tokens,
            cost_micros=rounded_micros(picos),
            summary=summary,
        )


def _noted(notes: Sequence[str]) -> str:
    """Return how unusual files are read, as sentences."""
    shown = "".join(f" {note}." for note in notes[:_MAX_NOTES])
    return f"{shown} {len(notes) - _MAX_NOTES:,} more are unusual." if len(notes) > _MAX_NOTES else shown
