"""How far a run is with its steps: what each has read, which batch it is, what it has put out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, select, text, update
from sqlalchemy.orm import Session

from jobs import files
from jobs.accounts import prices
from jobs.accounts.money import from_currency, in_currency
from jobs.accounts.prices import Prices
from jobs.batches import made_inputs
from jobs.batches.submission import CreateBatch
from jobs.errors import InputError
from jobs.files import NewFile
from jobs.lines.bodies import CHAT_ENDPOINT
from jobs.pipelines.external import Found
from jobs.pipelines.spec import Definition, Step
from jobs.settings import Settings
from jobs.states import BatchState, InvalidLines
from jobs.tables import Batch, DatasetFile, Model, Run, RunStep, Tenant

_LISTED_MODELS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A step's rows and lines, written as objects that no row names yet."""

    rows: NewFile
    lines: NewFile | None
    """None: no row became a line."""
    num_rows: int
    num_failed: int
    """Rows that became no line."""
    taken: Sequence[Found] = ()
    """Files that hold what is new since the last success."""


def steps_of(session: Session, run_id: str) -> list[RunStep]:
    """Return the steps that are begun, in order."""
    return list(session.scalars(select(RunStep).where(RunStep.run_id == run_id).order_by(RunStep.step_no)))


def begin_step(
    session: Session, run: Run, definition: Definition, step_no: int, prepared: Prepared, *, settings: Settings
) -> RunStep:
    """Name a step's rows and create its batch, in the transaction of the run's claim.

    Raises what creating a batch raises, and InputError where the run would pass one of its caps.
    """
    step = definition.steps[step_no]
    require_model(session, step.model)
    if prepared.lines is not None:
        check_caps(session, run, definition, step, prepared.lines)
    batch = None if prepared.lines is None else _submit(session, run, step, prepared.lines, settings)
    rows = files.create_file(session, run.tenant_id, prepared.rows)
    begun = RunStep(
        run_id=run.id,
        step_no=step_no,
        name=step.name,
        rows_file_id=rows.id,
        batch_id=None if batch is None else batch.id,
        num_rows=prepared.num_rows,
        num_failed=prepared.num_failed,
        prepared_at=session.scalar(select(func.now())),
    )
    session.add(begun)
    _take(session, run, step.name, prepared.taken)
    run.num_tries = 0
    session.flush()
    return begun


def _submit(session: Session, run: Run, step: Step, lines: NewFile, settings: Settings) -> Batch:
    tenant = session.get_one(Tenant, run.tenant_id)
    wanted = CreateBatch(
        input_file_id="",
        made_from=f"step {step.name} of {run.id}",
        endpoint=CHAT_ENDPOINT,
        completion_window=step.completion_window,
        metadata={"run_id": run.id, "step": step.name},
        priority=step.priority,
        invalid_lines=InvalidLines.SKIP,
    )
    return made_inputs.submit(session, tenant, wanted, lines, settings, key_id=run.api_key_id).batch


def finish_step(session: Session, step: RunStep, *, published: list[dict[str, Any]] | None, num_failed: int) -> None:
    """Note that a step is done, and what it has put out."""
    step.published, step.num_failed = published, num_failed
    step.done_at = session.scalar(select(func.now()))
    session.flush()


def reset_unfinished(session: Session, run_id: str, *, fails_on_error: Iterable[str]) -> None:
    """Forget a step that is to be done anew: its batch has not completed, or has failed lines that end the run."""
    failing = set(fails_on_error)
    for step in steps_of(session, run_id):
        batch = None if step.batch_id is None else session.get_one(Batch, step.batch_id)
        is_good = batch is None or (
            batch.state == BatchState.COMPLETED and not (batch.num_failed and step.name in failing)
        )
        if step.done_at is None and not (is_good and not (step.num_failed and step.name in failing)):
            session.execute(delete(RunStep).where(RunStep.run_id == run_id, RunStep.step_no == step.step_no))


def require_model(session: Session, name: str) -> None:
    """Raise InputError where a model is not known, which names some that are."""
    if session.get(Model, name) is None:
        known = session.scalars(select(Model.name).order_by(Model.name).limit(_LISTED_MODELS)).all()
        listed = ", ".join(known) or "none yet"
        raise InputError(f"The model {name[:80]!r} does not exist; known are: {listed}.", code="model_not_found")


def used(session: Session, run: Run) -> tuple[int, int]:
    """Return the tokens, and the pico-units of currency, that a run's batches have used.

    Those of steps that were done anew too: no step names them any more, but they were paid for.
    """
    of_run = select(Batch).where(
        Batch.tenant_id == run.tenant_id,
        Batch.created_at >= run.created_at,  # by which they are found: metadata has no index
        Batch.request_metadata["run_id"].astext == run.id,
    )
    batches = session.scalars(of_run).all()
    tokens = sum(batch.input_tokens + batch.output_tokens for batch in batches)
    return tokens, sum(prices.cost_picos(batch) for batch in batches)


def check_caps(session: Session, run: Run, definition: Definition, step: Step, lines: NewFile) -> None:
    """Raise InputError where a step's lines, as they are estimated, are more than its run may still use."""
    estimate = lines.estimate
    assert estimate is not None, "lines have one"
    if definition.max_tokens is None and definition.max_cost is None:
        return
    tokens, picos = used(session, run)
    needed = estimate.estimated_input_tokens + estimate.estimated_output_tokens
    if definition.max_tokens is not None and tokens + needed > definition.max_tokens:
        raise InputError(
            f"Step {step.name!r} needs about {needed:,} tokens, {tokens:,} are used, and max_tokens of the pipeline is "
            f"{definition.max_tokens:,}. Raise it, lower max_tokens of the step's parameters, or take fewer rows.",
            code="run_cap",
        )
    model = session.get(Model, step.model)
    if definition.max_cost is None or model is None:
        return
    cost = Prices.of(model, step.priority).cost_picos(
        input_tokens=estimate.estimated_input_tokens, output_tokens=estimate.estimated_output_tokens
    )
    if picos + cost > from_currency(definition.max_cost):
        raise InputError(
            f"Step {step.name!r} would cost about {in_currency(cost)}, {in_currency(picos)} are used, and max_cost of "
            f"the pipeline is {definition.max_cost}. Raise it, or take fewer rows.",
            code="run_cap",
        )


# --- what is new since the last success ------------------------------------------------------------------------------


def untaken(session: Session, pipeline_id: str, step: str, found: Sequence[Found]) -> list[Found]:
    """Return those files that no successful run of the pipeline took in as they are now."""
    rows = session.execute(
        select(DatasetFile.key, DatasetFile.version).where(
            DatasetFile.pipeline_id == pipeline_id,
            DatasetFile.step == step,
            DatasetFile.key.in_([each.key for each in found]),
            DatasetFile.done_at.is_not(None),
        )
    )
    done = {(row.key, row.version) for row in rows}
    return [each for each in found if (each.key, each.version) not in done]


def finish_files(session: Session, run_id: str) -> None:
    """Note that the run which took these files in has succeeded."""
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
