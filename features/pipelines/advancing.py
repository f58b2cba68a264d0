"""Advances one run as far as possible: prepares a step, waits for its batch, publishes the output, continues.

Each effect is one transaction under the run's claim, or can be repeated, as a worker may be killed at any moment.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from zoneinfo import ZoneInfo

from sqlalchemy.orm import Session, sessionmaker

from features.pipelines import lifecycle, steps, stores
from features.pipelines.context import RunContext
from features.pipelines.runs.claims import RUNS, RunWork
from features.pipelines.spec import parse_definition
from features.pipelines.states import RunState
from features.pipelines.step_work import rows_in, rows_out
from features.pipelines.step_work.claimed_run import ClaimedRun, OpenStore, RunFailedError
from features.pipelines.tables import Pipeline, Run, RunStep, Schedule
from jobs.accounts.windows import zone_of
from jobs.call_limits import parse_window
from jobs.errors import InputError, ServiceError
from jobs.graphs.advancing import Advancer
from jobs.graphs.reasons import batch_problem
from jobs.settings import Settings
from jobs.states import TERMINAL_BATCH_STATES, BatchState
from jobs.storage import Storage
from jobs.tables import Batch, Tenant
from jobs.telemetry.traces import NO_TRACES, Traces


class Runs(Advancer[Run]):
    """The runs of a control worker."""

    def __init__(
        self,
        sessions: sessionmaker[Session],
        storage: Storage,
        settings: Settings,
        *,
        hold_sessions: sessionmaker[Session] | None = None,
        open_store: OpenStore = stores.open_registered,
        traces: Traces = NO_TRACES,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(RUNS, sessions, settings, hold_sessions=hold_sessions, is_stopping=is_stopping)
        self._storage = storage
        self._open_store = open_store
        self._traces = traces

    def _cancel(self, session: Session, graph: Run, *, reason: str) -> None:
        lifecycle.stop(session, graph, reason=reason)

    def _end(self, session: Session, graph: Run, *, is_cancelled: bool) -> None:
        lifecycle.end_run(session, graph, RunState.CANCELLED if is_cancelled else RunState.FAILED)

    def _note_code(self, graph: Run, code: str) -> None:
        graph.error_code = code

    def _came_to_it(self, session: Session, graph: Run) -> datetime:
        moments = (graph.started_at, *(each.done_at for each in steps.steps_of(session, graph.id)))
        return max(moment for moment in moments if moment is not None)

    def _waits_until(self, session: Session, graph: Run) -> datetime:
        """Return when its next step's batch would expire if it had begun when the run reached the step."""
        begun = steps.steps_of(session, graph.id)
        assert graph.definition is not None, "it has begun"
        all_steps = parse_definition(graph.definition).steps
        step = all_steps[min(len(begun), len(all_steps) - 1)]
        return self._came_to_it(session, graph) + parse_window(step.completion_window)

    def _go_on(self, work: RunWork) -> bool:
        with work.reading() as session:
            run = session.get_one(Run, work.claim.id)
            is_gone = session.get_one(Tenant, run.tenant_id).deleted_at is not None
            is_stopped = run.state == RunState.CANCELLING or is_gone
            if run.state not in (RunState.RUNNING, RunState.CANCELLING):
                return False
            begun = steps.steps_of(session, run.id)
            batch = session.get(Batch, begun[-1].batch_id) if begun and begun[-1].batch_id else None
            claimed = self._claimed(work, _context_of(session, run))
        if is_stopped:
            self._stop(work, batch)
            return False
        if begun and begun[-1].done_at is None:
            return self._finish_step(claimed, begun[-1], batch)
        if len(begun) == len(claimed.context.definition.steps):
            self._succeed(work)
            return False
        self._begin_step(claimed, begun)
        return True

    def _claimed(self, work: RunWork, context: RunContext) -> ClaimedRun:
        return ClaimedRun(
            work=work, context=context, storage=self._storage, settings=self._settings, open_store=self._open_store
        )

    def _begin_step(self, claimed: ClaimedRun, begun: list[RunStep]) -> None:
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

    def _submit(self, claimed: ClaimedRun, step_no: int, prepared: steps.Prepared) -> None:
        definition = claimed.context.definition
        trace = self._traces.root("step", run_id=claimed.context.run_id, step=definition.steps[step_no].name)
        with trace as span, claimed.work.writing() as (session, run):
            if run.state == RunState.RUNNING:
                steps.begin_step(
                    session,
                    run,
                    definition,
                    step_no,
                    prepared,
                    settings=self._settings,
                    trace_context=span.context,
                )

    def _finish_step(self, claimed: ClaimedRun, begun: RunStep, batch: Batch | None) -> bool:
        if batch is not None and BatchState(batch.state) not in TERMINAL_BATCH_STATES:
            _end_at_cap(claimed, begun)
            return False
        if batch is not None and batch.state != BatchState.COMPLETED:
            raise RunFailedError(_batch_problem(begun, batch))
        step = claimed.context.definition.steps[begun.step_no]
        num_failed = rows_out.count_failed(claimed, step, begun)
        published = None if step.output is None else rows_out.publish(claimed, step, begun)
        with claimed.work.writing() as (session, run):
            current = session.get_one(RunStep, (run.id, begun.step_no))
            steps.finish_step(session, current, published=published, num_failed=num_failed)
            run.num_tries = 0
        return True

    def _succeed(self, work: RunWork) -> None:
        with work.writing() as (session, run):
            steps.finish_files(session, run.id)
            run.reason = None
            lifecycle.end_run(session, run, RunState.SUCCEEDED)


def _end_at_cap(claimed: ClaimedRun, begun: RunStep) -> None:
    """End a run whose batch has used up what the run may use."""
    with claimed.work.writing() as (session, run):
        reason = steps.stop_at_cap(session, run, claimed.context.definition, begun)
        if reason is not None:
            lifecycle.end_run(session, run, RunState.FAILED, reason=reason)


def _context_of(session: Session, run: Run) -> RunContext:
    pipeline = session.get_one(Pipeline, run.pipeline_id)
    schedule = None if run.schedule_id is None else session.get_one(Schedule, run.schedule_id)
    assert run.definition is not None, "a run in progress has one"
    return RunContext(
        run_id=run.id,
        tenant_id=run.tenant_id,
        pipeline_id=run.pipeline_id,
        pipeline=pipeline.name,
        kind=run.kind,
        scheduled_for=run.scheduled_for,
        interval_start=run.interval_start,
        interval_end=run.interval_end,
        zone=ZoneInfo("UTC") if schedule is None else zone_of(schedule.time_zone),
        definition=parse_definition(run.definition),
    )


def _batch_problem(begun: RunStep, batch: Batch) -> str:
    return f"{batch_problem(batch, of=f'step {begun.name!r}')}; if the run is resumed, the step starts over"
