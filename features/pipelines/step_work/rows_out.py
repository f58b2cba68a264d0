"""Counts the answered rows of a step, and publishes them with their answers' columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from features.pipelines import output_columns
from features.pipelines.output_columns import ERROR_COLUMN, OutputColumns
from features.pipelines.publishing import Publication
from features.pipelines.rows.outputs.kept_columns import loaded
from features.pipelines.spec import Format, OnError, Step
from features.pipelines.step_work.answer_statistics import AnswerStatistics
from features.pipelines.step_work.answered_rows import answer_to, shape_of
from features.pipelines.step_work.claimed_run import ClaimedRun, RunFailedError
from features.pipelines.step_work.failed_rows import FailedRows
from features.pipelines.tables import RunStep
from jobs.files import NewFile


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedAnswers:
    """The answers of a step."""

    statistics: AnswerStatistics
    failed_rows: NewFile | None
    """The rows without one, as an object that no row names yet; None if there are none."""


def count_answers(run: ClaimedRun, step: Step, begun: RunStep) -> CountedAnswers:
    """Count a step's answers, and write the rows without one. Raise RunFailedError if its on_error is fail."""
    shape = shape_of(step)
    statistics = AnswerStatistics(shape)
    first_error: str | None = None
    with FailedRows(run, step) as failed:
        for each in run.answered(begun):
            answer = answer_to(each, shape)
            statistics.add(each, answer)
            if answer.error is not None:
                failed.add(each.row, answer.error)
                first_error = first_error or f"{each.row.custom_id}: {answer.error}"
        if statistics.num_failed and step.on_error is OnError.FAIL:
            raise RunFailedError(
                f"{statistics.num_failed:,} of {begun.num_rows:,} rows of step {step.name!r} have no answer, and its "
                f"on_error is fail. The first: {first_error}"
            )
    return CountedAnswers(statistics=statistics, failed_rows=failed.file)


def publish(run: ClaimedRun, step: Step, begun: RunStep) -> list[dict[str, Any]]:
    """Publish a step's output in its store; return the files in the form of `RunStep.published`."""
    assert step.output is not None
    store = run.store(step.output.store, writing=True)
    publication = Publication(store, run.context, step, moves=run.work.check, confirm=run.work.confirm)
    shape = shape_of(step)
    columns = _output_columns(run, step, begun)
    answers = ((each.row.values, answer_to(each, shape)) for each in run.answered(begun))
    return publication.publish((columns.row(row, answer.values, answer.error) for row, answer in answers), columns)


def _output_columns(run: ClaimedRun, step: Step, begun: RunStep) -> OutputColumns:
    assert step.output is not None
    if step.output.form is Format.PARQUET:
        assert begun.row_schema is not None, "it was recorded when the step began"
        return OutputColumns(step, schema=output_columns.put_out(loaded(begun.row_schema), step))
    return OutputColumns(step, names=_names(run, begun, step))


def _names(run: ClaimedRun, begun: RunStep, step: Step) -> list[str]:
    """Return the columns of the output: those of its rows in order of first occurrence, then the answer's."""
    names: dict[str, None] = {}
    for each in run.answered(begun):
        names |= dict.fromkeys(each.row.values)
    names |= dict.fromkeys(output_columns.added_columns(step))
    return [*(name for name in names if name != ERROR_COLUMN), ERROR_COLUMN]
