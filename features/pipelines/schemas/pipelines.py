"""`/v1/pipelines`, `/v1/schedules`, `/v1/runs`: what they are made of and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from api.schemas.wire import DeletedObject, ListedObject, Page, WireModel, unix_seconds, unix_seconds_or_none
from features.pipelines.preview import Preview
from features.pipelines.scheduling.cron import Tick
from features.pipelines.tables import Pipeline, Run, RunStep, Schedule
from jobs.accounts.money import in_currency, rounded_micros
from jobs.accounts.prices import Prices
from jobs.counted import counted
from jobs.states import CatchUp, Overlap, RunKind, RunState


class PipelineObject(ListedObject):
    object: Literal["pipeline"] = "pipeline"
    name: str
    version: int
    """Of the definition: 1, and one more with each change."""
    steps: list[dict[str, Any]]
    """As they were given."""
    max_tokens: int | None
    """Of all batches of a run."""
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
    """On the clocks of its time zone."""
    note: str | None
    """Where the clocks change before it."""

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
    """A run that has not ended so long after its `scheduled_for` is late."""
    paused_at: int | None
    """Null while it runs."""
    pause_reason: str | None
    """Null where somebody paused it."""
    num_failures: int
    """Runs in a row that failed, up to the last one."""
    num_skipped: int
    """Runs in a row that were skipped, up to the last one."""
    next_runs: list[NextRun]
    """Five, in a list the first alone; none while it is paused, or where there is none any more."""
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
    """Rows without an answer, known once it is done; before, those that could not be rendered."""
    batch_id: str | None
    """Null where none of its rows became a line."""
    rows_file_id: str | None
    """The file that has its rows as they were read."""
    files: list[OutputFile]
    """What it has put out."""

    @classmethod
    def of(cls, step: RunStep) -> Self:
        return cls(
            name=step.name,
            status="in_progress" if step.done_at is None else "done",
            rows=step.num_rows,
            failed=step.num_failed,
            batch_id=step.batch_id,
            rows_file_id=step.rows_file_id,
            files=[OutputFile(**file) for file in step.published or []],
        )


class RunObject(ListedObject):
    object: Literal["run"] = "run"
    pipeline_id: str
    schedule_id: str | None
    kind: RunKind
    status: RunState
    reason: str | None
    """Why it failed, was skipped or cancelled; while it runs, the trouble for which it is tried again."""
    error_code: str | None
    """Of what it failed by, where that has one, such as `template_cpu_exceeded`."""
    scheduled_for: int
    interval_start: int
    interval_end: int
    num_missed: int
    """How many runs a skipped one stands for."""
    steps: list[StepObject]
    """Those that have begun."""
    total_tokens: int
    """Of its batches."""
    cost_micros: int
    created_at: int
    started_at: int | None
    ended_at: int | None
    late_at: int | None
    """When it was found not to have ended in the time that its schedule allows."""

    @classmethod
    def of(cls, run: Run, steps: Sequence[RunStep], used: tuple[int, int]) -> Self:
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
        )


class RunPage(Page[RunObject]):
    """Newest first."""


class BackfillObject(WireModel):
    object: Literal["backfill"] = "backfill"
    runs: list[str]
    """Ids of the runs that are new, in the order of their times."""


class DeletedPipeline(DeletedObject):
    object: Literal["pipeline"] = "pipeline"


class DeletedSchedule(DeletedObject):
    object: Literal["schedule"] = "schedule"


class DeletedRun(DeletedObject):
    object: Literal["run"] = "run"


class PreviewObject(WireModel):
    object: Literal["pipeline.preview"] = "pipeline.preview"
    lines: list[dict[str, Any]]
    """The first three lines that its first step would send."""
    rows: int
    """That were looked at: 1,000 at most, as for what follows."""
    failed: int
    """Those that cannot be rendered."""
    has_more: bool
    files: int
    """All that its source means now."""
    estimated_input_tokens: int
    estimated_output_tokens: int
    """The most that they may have."""
    cost_micros: int
    summary: str
    """All of this as sentences."""

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
            f"{failed if preview.num_failed else ''}"
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
