"""The steps of a run: their rows, batches and published outputs, and the caps of the run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session

from features.pipelines.external.store import Found
from features.pipelines.spec import Definition, Step
from features.pipelines.tables import DatasetFile, Run, RunStep
from flows import nodes
from flows.ends import FlowEnd
from flows.ends import expected_end as flow_end
from jobs import files
from jobs.accounts import prices
from jobs.accounts.money import from_currency, in_currency
from jobs.accounts.prices import Prices
from jobs.batches import lifecycle as batches
from jobs.batches import made_inputs
from jobs.batches.submission import CreateBatch
from jobs.chunks import used_caps
from jobs.counted import counted
from jobs.database import find_row
from jobs.errors import InputError
from jobs.files import NewFile
from jobs.lines.bodies import CHAT_ENDPOINT
from jobs.settings import Settings
from jobs.states import BatchState, InvalidLines
from jobs.tables import Batch, Model, Tenant

_LISTED_MODELS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A step's rows and lines, written as objects that no row names yet."""

    rows: NewFile
    lines: NewFile | None
    """None if no row became a line."""
    num_rows: int
    num_failed: int
    """Rows that became no line."""
    row_schema: bytes | None = None
    """Types of the rows' columns, in the form of `features.pipelines.rows.outputs.kept_columns`; None if unused."""
    cpu_seconds: float = 0.0
    """Processor time of rendering its prompt."""
    taken: Sequence[Found] = ()
    """The files that are new since the last success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The usage and the caps of a run."""

    used_tokens: int
    used_picos: int
    max_tokens: int | None
    max_picos: int | None

    @property
    def tokens(self) -> int | None:
        """Return the tokens left, None without a cap."""
        return None if self.max_tokens is None else max(self.max_tokens - self.used_tokens, 0)

    @property
    def picos(self) -> int | None:
        return None if self.max_picos is None else max(self.max_picos - self.used_picos, 0)


def steps_of(session: Session, run_id: str) -> list[RunStep]:
    """Return the steps that have begun, in order."""
    return nodes.nodes_of(session, RunStep, run_id)


def expected_end(run: Run, begun: Sequence[RunStep], batches: Mapping[str, Batch], *, now: datetime) -> FlowEnd:
    """Return when a run is expected to end; known once its last step has begun."""
    if run.ended_at is not None or run.definition is None:
        return FlowEnd()
    return flow_end(begun, batches, is_last_begun=len(begun) == len(run.definition["steps"]), now=now)


def steps_of_each(session: Session, run_ids: Collection[str]) -> dict[str, list[RunStep]]:
    """Return the steps of several runs by run id, in one query."""
    return nodes.nodes_of_each(session, RunStep, run_ids)


def begin_step(
    session: Session,
    run: Run,
    definition: Definition,
    step_no: int,
    prepared: Prepared,
    *,
    settings: Settings,
    trace_context: str | None = None,
) -> RunStep:
    """Record a step's rows and create its batch, in the transaction of the run's claim.

    Raise what creating a batch raises, and InputError if the run would exceed one of its caps.
    """
    step = definition.steps[step_no]
    model = require_model(session, step.model)
    batch = None
    if prepared.lines is None:
        rows = files.create_file(session, run.tenant_id, prepared.rows)
    else:
        left = what_is_left(session, run, definition)
        check_caps(left, step, prepared.lines, model)
        wanted = _submission(run, step, left, trace_context=trace_context)
        tenant, key_id = find_row(session, Tenant, run.tenant_id), run.api_key_id
        assert tenant is not None, "rows of tenants stay"
        made = made_inputs.submit(
            session, tenant, wanted, prepared.lines, settings, key_id=key_id, beside=[prepared.rows]
        )
        batch, [rows] = made.batch, made.beside
    begun = RunStep(
        flow_id=run.id,
        number=step_no,
        name=step.name,
        batch_id=None if batch is None else batch.id,
        num_lines=prepared.num_rows - prepared.num_failed,
        rows_file_id=rows.id,
        num_rows=prepared.num_rows,
        num_failed=prepared.num_failed,
        row_schema=prepared.row_schema,
        cpu_seconds=prepared.cpu_seconds,
    )
    session.add(begun)
    _take(session, run, step.name, prepared.taken)
    run.num_tries, run.reason = 0, None
    session.flush()
    return begun


def _submission(run: Run, step: Step, left: Left, *, trace_context: str | None) -> CreateBatch:
    return CreateBatch(
        input_file_id="",
        made_from=f"step {step.name} of {run.id}",
        endpoint=CHAT_ENDPOINT,
        completion_window=step.completion_window,
        metadata={"run_id": run.id, "step": step.name},
        run_id=run.id,
        priority=step.priority,
        invalid_lines=InvalidLines.SKIP,
        cap_tokens=left.tokens,
        cap_picos=left.picos,
        trace_context=trace_context,
    )


def finish_step(
    session: Session,
    run: Run,
    step: RunStep,
    *,
    published: list[dict[str, Any]] | None,
    statistics: dict[str, Any],
    failed_rows: NewFile | None,
) -> None:
    """Record that a step is done, with its published files, the statistics of its answers, and its failed rows."""
    step.published, step.num_failed, step.statistics = published, statistics["failed"], statistics
    if failed_rows is not None:
        step.failed_rows_file_id = files.create_file(session, run.tenant_id, failed_rows).id
    nodes.note_ended(session, run, step)


def reset_unfinished(session: Session, run_id: str, *, fails_on_error: Iterable[str]) -> None:
    """Delete a step that must start over: its batch did not complete, or has failed lines that end the run."""
    failing = set(fails_on_error)
    for step in steps_of(session, run_id):
        batch = None if step.batch_id is None else session.get_one(Batch, step.batch_id)
        is_good = batch is None or (
            batch.state == BatchState.COMPLETED and not (batch.num_failed and step.name in failing)
        )
        if step.done_at is None and not (is_good and not (step.num_failed and step.name in failing)):
            session.delete(step)


def require_model(session: Session, name: str) -> Model:
    """Return a model. Raise InputError, which lists known models, if it is unknown."""
    model = find_row(session, Model, name)
    if model is None:
        known = session.scalars(select(Model.name).order_by(Model.name).limit(_LISTED_MODELS)).all()
        listed = ", ".join(known) or "none yet"
        raise InputError(f"The model {name[:80]!r} does not exist; known are: {listed}.", code="model_not_found")
    return model


def used(session: Session, run: Run) -> tuple[int, int]:
    """Return the tokens and pico-units of currency that a run's batches have used.

    This includes batches of steps that started over: no step names them any more, but they were billed.
    """
    return used_by_each(session, [run.id])[run.id]


def used_by_each(session: Session, run_ids: Collection[str]) -> dict[str, tuple[int, int]]:
    """Return the usage of several runs by run id, in one query."""
    usage = dict.fromkeys(run_ids, (0, 0))
    for batch in session.scalars(select(Batch).where(Batch.run_id.in_(run_ids))):
        tokens, picos = usage[batch.run_id or ""]
        usage[batch.run_id or ""] = tokens + batch.input_tokens + batch.output_tokens, picos + prices.cost_picos(batch)
    return usage


def what_is_left(session: Session, run: Run, definition: Definition) -> Left:
    """Return what a run may still use; without caps its usage is not counted."""
    has_caps = (definition.max_tokens, definition.max_cost) != (None, None)
    tokens, picos = used(session, run) if has_caps else (0, 0)
    return Left(
        used_tokens=tokens,
        used_picos=picos,
        max_tokens=definition.max_tokens,
        max_picos=None if definition.max_cost is None else from_currency(definition.max_cost),
    )


def check_caps(left: Left, step: Step, lines: NewFile, model: Model) -> None:
    """Raise InputError if the estimate of a step's lines exceeds what its run may still use."""
    estimate = lines.estimate
    assert estimate is not None, "lines have one"
    needed = estimate.estimated_input_tokens + estimate.estimated_output_tokens
    if left.tokens is not None and needed > left.tokens:
        raise InputError(
            f"Step {step.name!r} needs about {needed:,} tokens, {left.used_tokens:,} are used, and max_tokens of the "
            f"pipeline is {left.max_tokens:,}. Raise it, lower max_tokens of the step's parameters, or take fewer "
            "rows.",
            code="run_cap",
        )
    if left.picos is None:
        return
    cost = Prices.of(model, step.priority).cost_picos(
        input_tokens=estimate.estimated_input_tokens, output_tokens=estimate.estimated_output_tokens
    )
    if cost > left.picos:
        raise InputError(
            f"Step {step.name!r} would cost about {in_currency(cost)}, {in_currency(left.used_picos)} are used, and "
            f"max_cost of the pipeline is {in_currency(left.max_picos or 0)}. Raise it, or take fewer rows.",
            code="run_cap",
        )


def stop_at_cap(session: Session, run: Run, definition: Definition, step: RunStep) -> str | None:
    """Cancel a step's batch that has used up what its run may use, and return why; None if there is room.

    Finished lines stay and are billed. Call it in the transaction that ends the run.
    """
    assert step.batch_id is not None
    batch = batches.lock_batch(session, step.batch_id)
    assert batch is not None, "rows of batches stay"
    if not used_caps.is_used_up(session, batch.id):
        return None
    batches.cancel_batch(session, run.tenant_id, batch.id)
    left = what_is_left(session, run, definition)
    num_left = batch.num_requests - batch.num_completed - batch.num_failed
    waiting = "the line that has not run" if num_left == 1 else f"one of the {num_left:,} lines that have not run"
    tokens, money = counted(left.used_tokens, "token"), in_currency(left.used_picos)
    caps = [f"max_tokens of the pipeline is {left.max_tokens:,}"] if left.max_tokens is not None else []
    caps += [f"max_cost of the pipeline is {in_currency(left.max_picos)}"] if left.max_picos is not None else []
    return (
        f"Step {step.name!r} was stopped: {tokens} and {money} are used, which leaves no room for {waiting}, "
        f"as {' and '.join(caps)}. Raise it and resume the run, or take fewer rows."
    )


# --- what is new since the last success ------------------------------------------------------------------------------


def untaken(session: Session, pipeline_id: str, step: str, listed: Sequence[Found]) -> list[Found]:
    """Return the files whose current version no successful run of the pipeline has taken."""
    rows = session.execute(
        select(DatasetFile.key, DatasetFile.version).where(
            DatasetFile.pipeline_id == pipeline_id,
            DatasetFile.step == step,
            DatasetFile.key.in_([each.key for each in listed]),
            DatasetFile.done_at.is_not(None),
        )
    )
    done = {(row.key, row.version) for row in rows}
    return [each for each in listed if (each.key, each.version) not in done]


def finish_files(session: Session, run_id: str) -> None:
    """Record that the run which took these files has succeeded."""
    taken = update(DatasetFile).where(DatasetFile.run_id == run_id, DatasetFile.done_at.is_(None))
    session.execute(taken.values(done_at=func.now()))


def _take(session: Session, run: Run, step: str, taken: Sequence[Found]) -> None:
    rows = [
        {
            "pipeline_id": run.pipeline_id,
            "step": step,
            "key": each.key,
            "version": each.version,
            "size_bytes": each.size_bytes,
            "run_id": run.id,
        }
        for each in taken
    ]
    if rows:
        session.execute(_TAKE, rows)


_TAKE = text("""
    INSERT INTO dataset_file (pipeline_id, step, key, version, size_bytes, run_id)
    VALUES (:pipeline_id, :step, :key, :version, :size_bytes, :run_id)
    ON CONFLICT (pipeline_id, step, key, version) DO UPDATE SET run_id = excluded.run_id, done_at = NULL
""")
