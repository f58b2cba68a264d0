"""Takes one run as far as it goes: prepares a step, waits for its batch, publishes what came out, goes on.

Each effect is one transaction under the run's claim, or one that can be repeated: a worker may be killed at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy.orm import Session, sessionmaker

from jobs import files
from jobs.accounts.windows import zone_of
from jobs.batches import queue_limits
from jobs.batches.submission import parse_window
from jobs.errors import InputError, ServiceError
from jobs.graphs.advancing import Advancer
from jobs.graphs.reasons import batch_problem
from jobs.pipelines import definitions, lifecycle, output_columns, steps, stores
from jobs.pipelines.context import RunContext
from jobs.pipelines.external.store import ExternalStore
from jobs.pipelines.groups import groups
from jobs.pipelines.output_columns import ERROR_COLUMN, OutputColumns, RowTypes
from jobs.pipelines.preparing import Preparation, SourceRow
from jobs.pipelines.publishing import Publication
from jobs.pipelines.runs.claims import RUNS, RunWork
from jobs.pipelines.sources import batch_rows
from jobs.pipelines.sources.store_files import TakenFiles, take_files
from jobs.pipelines.spec import Format, OnError, Step, parse_definition
from jobs.pipelines.step_rows import AnsweredRow, answered
from jobs.settings import Settings
from jobs.states import TERMINAL_BATCH_STATES, BatchState, RunState
from jobs.storage import Storage
from jobs.tables import Batch, Pipeline, Run, RunStep, Schedule, Store, Tenant
from jobs.telemetry.traces import NO_TRACES, Traces
from pipelines.outputs.answers import TEXT_COLUMN, Answer, answer_of
from pipelines.outputs.column_types import answer_columns
from pipelines.outputs.kept_columns import loaded

OpenStore = Callable[..., ExternalStore]


class RunFailedError(InputError):
    """A run cannot go on; the message is its reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Where the answers of a step that has run are."""

    rows_key: str
    output_key: str | None
    errors_key: str | None


class Runs(Advancer[Run]):
    """What a control worker does with runs."""

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

    def _came_to_it(self, session: Session, graph: Run) -> datetime:
        moments = (graph.started_at, *(each.done_at for each in steps.steps_of(session, graph.id)))
        return max(moment for moment in moments if moment is not None)

    def _waits_until(self, session: Session, graph: Run) -> datetime:
        """Return when the time of its next step's batch would be over, had it begun when the run came to it."""
        begun = steps.steps_of(session, graph.id)
        assert graph.definition is not None, "it has begun"
        all_steps = parse_definition(graph.definition).steps
        step = all_steps[min(len(begun), len(all_steps) - 1)]
        return self._came_to_it(session, graph) + parse_window(step.completion_window)

    # --- one thing at a time -----------------------------------------------------------------------------------------

    def _go_on(self, work: RunWork) -> bool:
        with work.reading() as session:
            run = session.get_one(Run, work.claim.id)
            is_gone = session.get_one(Tenant, run.tenant_id).deleted_at is not None
            is_stopped = run.state == RunState.CANCELLING or is_gone
            if run.state not in (RunState.RUNNING, RunState.CANCELLING):
                return False
            begun = steps.steps_of(session, run.id)
            batch = session.get(Batch, begun[-1].batch_id) if begun and begun[-1].batch_id else None
            context = _context_of(session, run)
        if is_stopped:
            self._stop(work, batch)
            return False
        if begun and begun[-1].done_at is None:
            return self._finish_step(work, context, begun[-1], batch)
        if len(begun) == len(context.definition.steps):
            self._succeed(work)
            return False
        self._prepare(work, context, len(begun), begun)
        return True

    def _succeed(self, work: RunWork) -> None:
        with work.writing() as (session, run):
            steps.finish_files(session, run.id)
            run.reason = None
            lifecycle.end_run(session, run, RunState.SUCCEEDED)

    # --- rows in -----------------------------------------------------------------------------------------------------

    def _prepare(self, work: RunWork, context: RunContext, step_no: int, begun: list[RunStep]) -> None:
        step = context.definition.steps[step_no]
        if not begun:
            self._require_able(work, context)
        prepared = self._written(work, context, step_no, begun)
        try:
            trace = self._traces.root("step", run_id=work.claim.id, step=step.name)
            with trace as span, work.writing() as (session, run):
                if run.state == RunState.RUNNING:
                    steps.begin_step(
                        session,
                        run,
                        context.definition,
                        step_no,
                        prepared,
                        settings=self._settings,
                        trace_context=span.context,
                    )
        except InputError:
            # Refused, so no row names them: the next try writes its own.
            for written in (prepared.rows, prepared.lines):
                if written is not None:
                    with suppress(ServiceError):  # then the sweep does it
                        self._storage.delete(written.object_key)
            raise

    def _written(self, work: RunWork, context: RunContext, step_no: int, begun: list[RunStep]) -> steps.Prepared:
        """Read a step's source and write its lines, unless there is no room for a batch of them."""
        step = context.definition.steps[step_no]
        if step.source.step is None:
            taken = self._taken(work, context, step, step_no)
            if taken.files or step.source.batch is not None:
                self._require_room(work, context)
            preparation = self._preparation(work, context, step, known=taken.schema)
            return preparation.write(taken.rows, taken=taken.files)
        earlier = next(each for each in begun if each.name == step.source.step)
        if earlier.num_failed < earlier.num_rows:
            self._require_room(work, context)
        has_groups = step.source.group_by is not None  # whose columns are others
        known = None if has_groups else _known_types(context, earlier)
        preparation = self._preparation(work, context, step, known=known)
        chained = self._chained_rows(work, context, earlier)
        if step.source.group_by is not None:
            chained = groups(chained, step.source.group_by, settings=self._settings)
        return preparation.write(chained)

    def _require_room(self, work: RunWork, context: RunContext) -> None:
        with work.reading() as session:
            queue_limits.check_open(session, session.get_one(Tenant, context.tenant_id), self._settings)

    def _taken(self, work: RunWork, context: RunContext, step: Step, step_no: int) -> TakenFiles:
        if step.source.batch is not None:
            place = f"steps.{step_no}.source.batch"
            with work.reading() as session:
                key = batch_rows.answers_key(session, context.tenant_id, step.source.batch, place=place)
            return TakenFiles(files=[], rows=batch_rows.rows(self._storage, key, work.check))
        store = self._store(work, context, step.source.store, writing=False)
        return take_files(
            store, context, step, lambda found: self._untaken(work, context, step, found), moves=work.check
        )

    def _require_able(self, work: RunWork, context: RunContext) -> None:
        """Raise InputError where a step could not be done, before anything is spent on the first."""
        output_columns.require_packages(context.definition)
        with work.reading() as session:
            definitions.check_names(session, context.tenant_id, context.definition)

    def _preparation(self, work: RunWork, context: RunContext, step: Step, *, known: Any) -> Preparation:
        has_types = output_columns.comes_to_parquet(context.definition, step)
        types = RowTypes(known) if has_types else None
        return Preparation(self._storage, context, step, settings=self._settings, moves=work.check, types=types)

    def _untaken(self, work: RunWork, context: RunContext, step: Step, found: list[Any]) -> list[Any]:
        with work.reading() as session:
            return steps.untaken(session, context.pipeline_id, step.name, found)

    def _chained_rows(self, work: RunWork, context: RunContext, earlier: RunStep) -> Iterator[SourceRow]:
        """Yield the answered rows of an earlier step; those without an answer go no further."""
        step = context.definition.steps[earlier.step_no]
        columns = _columns_of(step)
        for each in self._answered(work, earlier):
            answer = _answer_of(each, columns)
            if answer.error is None:
                text = answer.values.get(TEXT_COLUMN) if columns is None else _text_of(each)
                previous = {"text": text, "json": None if columns is None else dict(answer.values)}
                values = {**each.row.values, **answer.values}
                yield SourceRow(custom_id=each.row.custom_id, values=values, previous=previous)

    # --- rows out ----------------------------------------------------------------------------------------------------

    def _finish_step(self, work: RunWork, context: RunContext, begun: RunStep, batch: Batch | None) -> bool:
        if batch is not None and BatchState(batch.state) not in TERMINAL_BATCH_STATES:
            self._end_at_cap(work, context, begun)
            return False
        if batch is not None and batch.state != BatchState.COMPLETED:
            raise RunFailedError(_batch_problem(begun, batch))
        step = context.definition.steps[begun.step_no]
        columns = _columns_of(step)
        num_failed = 0
        first_error: str | None = None
        for each in self._answered(work, begun):
            answer = _answer_of(each, columns)
            if answer.error is not None:
                num_failed += 1
                first_error = first_error or f"{each.row.custom_id}: {answer.error}"
        if num_failed and step.on_error is OnError.FAIL:
            raise RunFailedError(
                f"{num_failed:,} of {begun.num_rows:,} rows of step {step.name!r} have no answer, and its on_error is "
                f"fail. The first: {first_error}"
            )
        published = None if step.output is None else self._publish(work, context, step, begun)
        with work.writing() as (session, run):
            current = session.get_one(RunStep, (run.id, begun.step_no))
            steps.finish_step(session, current, published=published, num_failed=num_failed)
            run.num_tries = 0
        return True

    def _end_at_cap(self, work: RunWork, context: RunContext, begun: RunStep) -> None:
        with work.writing() as (session, run):
            reason = steps.stop_at_cap(session, run, context.definition, begun)
            if reason is not None:
                lifecycle.end_run(session, run, RunState.FAILED, reason=reason)

    def _publish(self, work: RunWork, context: RunContext, step: Step, begun: RunStep) -> list[dict[str, Any]]:
        assert step.output is not None
        store = self._store(work, context, step.output.store, writing=True)
        publication = Publication(store, context, step, moves=work.check, confirm=work.confirm)
        fields = _columns_of(step)
        columns = self._output_columns(work, step, begun)
        answers = ((each.row.values, _answer_of(each, fields)) for each in self._answered(work, begun))
        return publication.publish((columns.row(row, answer.values, answer.error) for row, answer in answers), columns)

    def _output_columns(self, work: RunWork, step: Step, begun: RunStep) -> OutputColumns:
        assert step.output is not None
        if step.output.form is Format.PARQUET:
            assert begun.row_schema is not None, "it was noted when the step was begun"
            return OutputColumns(step, schema=output_columns.put_out(loaded(begun.row_schema), step))
        return OutputColumns(step, names=self._names(work, begun, step))

    def _names(self, work: RunWork, begun: RunStep, step: Step) -> list[str]:
        """Return the columns of the output: those of its rows in the order in which they are met, then the answer's."""
        names: dict[str, None] = {}
        for each in self._answered(work, begun):
            names |= dict.fromkeys(each.row.values)
        names |= dict.fromkeys(output_columns.added_columns(step))
        return [*(name for name in names if name != ERROR_COLUMN), ERROR_COLUMN]

    def _answered(self, work: RunWork, begun: RunStep) -> Iterator[AnsweredRow]:
        with work.reading() as session:
            found = _answers_of(session, begun)
        rows = answered(self._storage, found.rows_key, output_key=found.output_key, errors_key=found.errors_key)
        for number, row in enumerate(rows):
            if number % 100 == 0:
                work.check()
            yield row

    def _store(self, work: RunWork, context: RunContext, name: str | None, *, writing: bool) -> ExternalStore:
        assert name is not None
        with work.reading() as session:
            store: Store = stores.get_store(session, context.tenant_id, name)
        return self._open_store(store, writing=writing, timeout_seconds=self._settings.storage_timeout_seconds)


def _context_of(session: Session, run: Run) -> RunContext:
    pipeline = session.get_one(Pipeline, run.pipeline_id)
    schedule = None if run.schedule_id is None else session.get_one(Schedule, run.schedule_id)
    assert run.definition is not None, "a run that is under way has one"
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


def _answers_of(session: Session, begun: RunStep) -> Answers:
    """Return where the answers of a step are. Raises RunFailedError where one of its files was deleted."""
    run = session.get_one(Run, begun.run_id)
    batch = None if begun.batch_id is None else session.get_one(Batch, begun.batch_id)
    ids = [begun.rows_file_id, *((None, None) if batch is None else (batch.output_file_id, batch.error_file_id))]
    keys: list[str | None] = []
    for file_id in ids:
        file = None if file_id is None else files.find_kept(session, run.tenant_id, file_id)
        if file_id is not None and file is None:
            raise RunFailedError(
                f"the file {file_id!r} of step {begun.name!r} was deleted or has expired, so its answers are gone; "
                "trigger a new run"
            )
        keys.append(None if file is None else file.object_key)
    assert keys[0] is not None, "every step has its rows"
    return Answers(rows_key=keys[0], output_key=keys[1], errors_key=keys[2])


def _known_types(context: RunContext, earlier: RunStep) -> Any:
    """Return the columns of the rows that an earlier step hands on; None where nobody needs their types."""
    if earlier.row_schema is None:
        return None
    return output_columns.with_answers(loaded(earlier.row_schema), context.definition.steps[earlier.step_no])


def _columns_of(step: Step) -> Any:
    return None if step.response_schema is None else answer_columns(step.response_schema)


def _answer_of(each: AnsweredRow, columns: Any) -> Answer:
    if each.row.error is not None:
        return Answer(values={}, error=each.row.error)
    if each.line is None:
        return Answer(values={}, error="the line has no result")
    return answer_of(each.line, columns)


def _text_of(each: AnsweredRow) -> str:
    assert each.line is not None, "it has an answer"
    return str(each.line["response"]["body"]["choices"][0]["message"]["content"])


def _batch_problem(begun: RunStep, batch: Batch) -> str:
    return f"{batch_problem(batch, of=f'step {begun.name!r}')}; resumed, the step is done anew"
