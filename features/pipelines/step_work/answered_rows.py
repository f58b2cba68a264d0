"""The answer of a step's row, parsed by the step's schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from features.pipelines.rows.outputs.answer_columns import Answer, answer_of
from features.pipelines.rows.outputs.column_types import ColumnType, answer_columns
from features.pipelines.spec import Step
from features.pipelines.step_rows import AnsweredRow


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerShape:
    """The values of a step's answers."""

    columns: Mapping[str, ColumnType] | None
    """None: they are texts."""
    has_thoughts: bool


def shape_of(step: Step) -> AnswerShape:
    schema = step.response_schema
    return AnswerShape(columns=None if schema is None else answer_columns(schema), has_thoughts=step.thoughts)


def answer_to(each: AnsweredRow, shape: AnswerShape) -> Answer:
    """Return a row's answer, or why it has none."""
    if each.row.error is not None:
        return Answer(values={}, error=each.row.error)
    if each.line is None:
        return Answer(values={}, error="the line has no result")
    return answer_of(each.line, shape.columns, has_thoughts=shape.has_thoughts)


def text_of(each: AnsweredRow) -> str:
    """Return the text of a row's answer, which must exist."""
    assert each.line is not None, "it has an answer"
    return str(each.line["response"]["body"]["choices"][0]["message"]["content"])
