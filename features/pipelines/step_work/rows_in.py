"""Reads the rows of a step (files of a store, a batch, an earlier step) and writes their lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from features.pipelines import definitions, output_columns, steps
from features.pipelines.context import RunContext
from features.pipelines.output_columns import RowTypes
from features.pipelines.preparing import Preparation, SourceRow
from features.pipelines.rows.outputs.answer_columns import TEXT_COLUMN, Answer
from features.pipelines.rows.outputs.kept_columns import loaded
from features.pipelines.rows.templates.cpu_time import CpuTime
from features.pipelines.settings import PipelineSettings
from features.pipelines.sources import batch_rows
from features.pipelines.sources.store_files import TakenFiles, take_files
from features.pipelines.spec import Step
from features.pipelines.step_work.answered_rows import AnswerShape, answer_to, shape_of, text_of
from features.pipelines.step_work.claimed_run import ClaimedRun
from features.pipelines.step_work.groups import groups
from features.pipelines.tables import RunStep
from jobs.batches import queue_limits
from jobs.settings import MIB
from jobs.tables import Tenant

_SMALL_BYTES = 4 * MIB
"""Files up to this size are read, and their lines written, before the batch itself is checked against the limits."""


def require_able(run: ClaimedRun) -> None:
    """Raise InputError if any step could not run, before the first one costs anything."""
    output_columns.require_packages(run.context.definition)
    with run.work.reading() as session:
        run.known_stores.update(definitions.check_names(session, run.context.tenant_id, run.context.definition))


def write(run: ClaimedRun, step_no: int, begun: list[RunStep]) -> steps.Prepared:
    """Read a step's source and write its lines.

    Raise RateLimitError or LimitError, before anything is written, if there is no room for the batch, unless that costs
    more than writing a few rows in vain once; InputError for an unreadable source, or if the run's prompts have used up
    its CPU time.
    """
    step = run.context.definition.steps[step_no]
    used = sum(each.cpu_seconds for each in begun)
    cpu = CpuTime(allowed_seconds=run.settings.of(PipelineSettings).run_template_seconds, used_seconds=used)
    if step.source.step is None:
        taken = _taken(run, step, step_no)
        if step.source.batch is not None or _is_worth_a_check(run, taken):
            _require_room(run)
        return _preparation(run, step, cpu, known=taken.schema).write(taken.rows, taken=taken.files)
    earlier = next(each for each in begun if each.name == step.source.step)
    if earlier.num_failed < earlier.num_rows:
        _require_room(run)
    chained = _chained_rows(run, earlier)
    if step.source.group_by is None:
        return _preparation(run, step, cpu, known=_known_types(run.context, earlier)).write(chained)
    grouped = groups(chained, step.source.group_by, settings=run.settings)
    return _preparation(run, step, cpu, known=None).write(grouped)  # groups have other columns


def _is_worth_a_check(run: ClaimedRun, taken: TakenFiles) -> bool:
    """Tell whether to check for room before the files are read: not when few are read for the first time."""
    size_bytes = sum(file.size_bytes for file in taken.files)
    return size_bytes > _SMALL_BYTES or (len(taken.files) > 0 and run.work.claim.fence > 1)


def _require_room(run: ClaimedRun) -> None:
    with run.work.reading() as session:
        queue_limits.check_open(session, session.get_one(Tenant, run.context.tenant_id), run.settings)


def _taken(run: ClaimedRun, step: Step, step_no: int) -> TakenFiles:
    if step.source.batch is not None:
        place = f"steps.{step_no}.source.batch"
        with run.work.reading() as session:
            key = batch_rows.answers_key(session, run.context.tenant_id, step.source.batch, place=place)
        return TakenFiles(files=[], rows=batch_rows.rows(run.storage, key, run.work.check))
    store = run.store(step.source.store, writing=False)
    return take_files(store, run.context, step, lambda files: _untaken(run, step, files), moves=run.work.check)


def _untaken(run: ClaimedRun, step: Step, files: list[Any]) -> list[Any]:
    with run.work.reading() as session:
        return steps.untaken(session, run.context.pipeline_id, step.name, files)


def _preparation(run: ClaimedRun, step: Step, cpu: CpuTime, *, known: Any) -> Preparation:
    has_types = output_columns.comes_to_parquet(run.context.definition, step)
    types = RowTypes(known) if has_types else None
    moves = run.work.check
    return Preparation(run.storage, run.context, step, settings=run.settings, moves=moves, cpu=cpu, types=types)


def _chained_rows(run: ClaimedRun, earlier: RunStep) -> Iterator[SourceRow]:
    """Yield the answered rows of an earlier step; rows without an answer are dropped."""
    shape = shape_of(run.context.definition.steps[earlier.number])
    for each in run.answered(earlier):
        answer = answer_to(each, shape)
        if answer.error is None:
            text = answer.values.get(TEXT_COLUMN) if shape.columns is None else text_of(each)
            previous = {"text": text, "json": _json_of(answer, shape)}
            values = {**each.row.values, **answer.values}
            yield SourceRow(custom_id=each.row.custom_id, values=values, previous=previous)


def _json_of(answer: Answer, shape: AnswerShape) -> dict[str, Any] | None:
    """Return an answer by its schema, without its thoughts; None without a schema."""
    return None if shape.columns is None else {name: answer.values[name] for name in shape.columns}


def _known_types(context: RunContext, earlier: RunStep) -> Any:
    """Return the columns of the rows of an earlier step; None if their types are not needed."""
    if earlier.row_schema is None:
        return None
    return output_columns.with_answers(loaded(earlier.row_schema), context.definition.steps[earlier.number])
