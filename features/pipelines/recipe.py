"""The recipe of a run: step by step rows become lines, their batch runs, and the output is published."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from zoneinfo import ZoneInfo

from sqlalchemy import text
from sqlalchemy.orm import Session

from features.pipelines import lifecycle, steps, stores
from features.pipelines.context import RunContext
from features.pipelines.runs.claims import RunWork
from features.pipelines.spec import parse_definition
from features.pipelines.states import RunState
from features.pipelines.step_work import rows_in, rows_out
from features.pipelines.step_work.claimed_run import ClaimedRun, OpenStore, RunFailedError
from features.pipelines.tables import Run, RunStep
from flows import rows, standing
from flows.reasons import batch_problem
from flows.recipe import Recipe
from flows.tables import FlowNode
from jobs.accounts.windows import zone_of
from jobs.call_limits import parse_window
from jobs.database import find_row
from jobs.errors import InputError, NotFoundError, ServiceError
from jobs.settings import Settings
from jobs.states import BatchState
from jobs.storage import Storage
from jobs.tables import Batch
from jobs.telemetry.traces import NO_TRACES, Traces


@dataclass(frozen=True, kw_only=True)
class Standing(standing.Standing[Run, RunStep]):
    """A run as its worker last read it."""

    context: RunContext


class RunRecipe(Recipe[Run, Standing]):
    """What a run does, step by step."""

    name = lifecycle.RECIPE
    kind = Run

    def __init__(
        self,
        storage: Storage,
        settings: Settings,
        *,
        open_store: OpenStore = stores.open_registered,
        traces: Traces = NO_TRACES,
    ) -> None:
        self._storage = storage
        self._settings = settings
        self._open_store = open_store
        self._traces = traces

    def look(self, session: Session, flow_id: str) -> Standing:
        run = find_row(session, Run, flow_id)
        if run is None:
            raise NotFoundError(f"run {flow_id} is gone")
        read = partial(Standing, context=_context_of(session, run))
        return standing.read(session, run, steps.steps_of(session, flow_id), read)

    def lock(self, session: Session, flow_id: str) -> Run | None:
        """Return a locked run, after locking its schedule."""
        session.execute(_LOCK_SCHEDULE, {"run_id": flow_id})
        return lifecycle.RUNS.lock(session, flow_id)

    def is_any_waiting(self, session: Session) -> bool:
        return lifecycle.is_any_to_start(session)

    def start_waiting(self, session: Session) -> None:
        lifecycle.start_queued(session)

    def next_nodes(self, standing: Standing) -> Sequence[str]:
        left = standing.context.definition.steps[len(standing.begun) :]
        return [step.name for step in left[:1]]

    def began_at(self, standing: Standing) -> datetime:
        return standing.flow.started_at or standing.flow.created_at

    def waits_until(self, standing: Standing) -> datetime:
        """Return when its next step's batch would expire if it had begun when the run reached the step."""
        all_steps = standing.context.definition.steps
        step = all_steps[min(len(standing.begun), len(all_steps) - 1)]
        return standing.reached_at(self.began_at(standing)) + parse_window(step.completion_window)

    def cancel(self, session: Session, flow: Run, *, reason: str) -> None:
        lifecycle.stop(session, flow, reason=reason)

    def end_early(self, session: Session, flow: Run, *, is_cancelled: bool) -> None:
        lifecycle.end_run(session, flow, RunState.CANCELLED if is_cancelled else RunState.FAILED)

    def note_code(self, flow: Run, code: str) -> None:
        flow.error_code = code

    def begin(self, work: RunWork, standing: Standing, name: str) -> bool:
        del name  # steps begin in their order
        claimed, begun = self._claimed(work, standing), list(standing.begun)
        if not begun:
            rows_in.require_able(claimed)
        prepared = rows_in.write(claimed, len(begun), begun)
        try:
            self._submit(claimed, len(begun), prepared)
        except InputError:
            # Refused, so no row names them: a retry writes its own.
            for file in (prepared.rows, prepared.lines):
                if file is not None:
                    with suppress(ServiceError):  # then the sweep deletes it
                        self._storage.delete(file.object_key)
            raise
        return True

    def watch(self, work: RunWork, standing: Standing) -> None:
        """End a run whose batch has used up what the run may use."""
        (begun,) = standing.open_nodes
        with work.writing() as (session, run):
            reason = steps.stop_at_cap(session, run, standing.context.definition, begun)
            if reason is not None:
                lifecycle.end_run(session, run, RunState.FAILED, reason=reason)

    def end(self, work: RunWork, standing: Standing, node: FlowNode) -> None:
        assert isinstance(node, RunStep), "a step of a run"
        batch = standing.batch_of(node)
        if batch is not None and batch.state != BatchState.COMPLETED:
            raise RunFailedError(_batch_problem(node, batch))
        claimed = self._claimed(work, standing)
        step = standing.context.definition.steps[node.number]
        answers = rows_out.count_answers(claimed, step, node)
        published = None if step.output is None else rows_out.publish(claimed, step, node)
        with work.writing() as (session, run):
            current = session.get_one(RunStep, (run.id, node.number))
            steps.finish_step(
                session,
                run,
                current,
                published=published,
                statistics=answers.statistics.stored(),
                failed_rows=answers.failed_rows,
            )

    def complete(self, work: RunWork, standing: Standing, *, reason: str | None) -> None:
        del standing, reason  # no step is dispensable
        with work.writing() as (session, run):
            steps.finish_files(session, run.id)
            run.reason = None
            lifecycle.end_run(session, run, RunState.SUCCEEDED)

    def _claimed(self, work: RunWork, standing: Standing) -> ClaimedRun:
        return ClaimedRun(
            work=work,
            context=standing.context,
            storage=self._storage,
            settings=self._settings,
            open_store=self._open_store,
        )

    def _submit(self, claimed: ClaimedRun, step_no: int, prepared: steps.Prepared) -> None:
        definition = claimed.context.definition
        trace = self._traces.root("step", run_id=claimed.context.run_id, step=definition.steps[step_no].name)
        with trace as span, claimed.work.writing() as (session, run):
            if run.state == RunState.RUNNING:
                begun = steps.begin_step(
                    session,
                    run,
                    definition,
                    step_no,
                    prepared,
                    settings=self._settings,
                    trace_context=span.context,
                )
                if begun.batch_id is not None:  # nothing follows before it has ended
                    rows.free(run)


def _context_of(session: Session, run: Run) -> RunContext:
    pipeline, zone = session.execute(_NAMES, {"run_id": run.id}).one()
    assert run.definition is not None, "a run in progress has one"
    return RunContext(
        run_id=run.id,
        tenant_id=run.tenant_id,
        pipeline_id=run.pipeline_id,
        pipeline=pipeline,
        kind=run.kind,
        scheduled_for=run.scheduled_for,
        interval_start=run.interval_start,
        interval_end=run.interval_end,
        zone=ZoneInfo("UTC") if zone is None else zone_of(zone),
        definition=parse_definition(run.definition),
    )


def _batch_problem(begun: RunStep, batch: Batch) -> str:
    return f"{batch_problem(batch, of=f'step {begun.name!r}')}; if the run is resumed, the step starts over"


_NAMES = text("""
    SELECT pipeline.name, schedule.time_zone FROM run JOIN pipeline ON pipeline.id = run.pipeline_id
    LEFT JOIN schedule ON schedule.id = run.schedule_id WHERE run.id = :run_id
""")
_LOCK_SCHEDULE = text("""
    SELECT schedule.id FROM schedule JOIN run ON run.schedule_id = schedule.id WHERE run.id = :run_id
    FOR NO KEY UPDATE OF schedule
""")
