"""The answer of a step's row, parsed by the step's schema."""

from __future__ import annotations

from typing import Any

from features.pipelines.rows.outputs.answer_columns import Answer, answer_of
from features.pipelines.rows.outputs.column_types import answer_columns
from features.pipelines.spec import Step
from features.pipelines.step_rows import AnsweredRow


def columns_of(step: Step) -> Any:
    """Return the columns of a step's answers, None if they are texts."""
    return None if step.response_schema is None else answer_columns(step.response_schema)


def answer_to(each: AnsweredRow, columns: Any) -> Answer:
    """Return a row's answer, or why it has none."""
    if each.row.error is not None:
        return Answer(values={}, error=each.row.error)
    if each.line is None:
        return Answer(values={}, error="the line has no result")
    return answer_of(each.line, columns)


def text_of(each: AnsweredRow) -> str:
    """Return the text of a row's answer, which must exist."""
    assert each.line is not None, "it has an answer"
    return str(each.line["response"]["body"]["choices"][0]["message"]["content"])
