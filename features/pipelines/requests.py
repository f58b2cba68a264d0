"""The requests of a step: builds the line of each row, and checks that a worker could serve it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from features.pipelines.output_columns import comes_to_parquet
from features.pipelines.rows.lines.table_shape import require_free
from features.pipelines.rows.outputs.column_types import answer_columns, require_narrow
from features.pipelines.rows.outputs.schema_keywords import check_keywords
from features.pipelines.rows.templates.renderer import Message
from features.pipelines.rows.templates.template import check
from features.pipelines.spec import Definition, Step
from jobs.batches.estimating import check_lines
from jobs.errors import InputError
from jobs.lines.bodies import CHAT_ENDPOINT
from jobs.settings import Settings


def line_of(step: Step, custom_id: str, *, messages: Iterable[Message]) -> bytes:
    """Return the batch line of a row."""
    body: dict[str, Any] = {
        "model": step.model,
        "messages": [{"role": message.role, "content": message.content} for message in messages],
        **step.parameters,
    }
    if step.response_schema is not None:
        named = {"name": "answer", "strict": True, "schema": step.response_schema}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    return orjson.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT_ENDPOINT, "body": body})


def check_requests(definition: Definition, settings: Settings) -> None:
    """Compile each prompt, check each step's schema and parameters. Raise InputError with the place.

    It starts a process for each prompt, so call it without a session.
    """
    for number, step in enumerate(definition.steps):
        try:
            _check_prompt(step)
        except InputError as error:
            raise _placed(error, f"steps.{number}.prompt") from None
        try:
            _check_columns(definition, step)
        except InputError as error:
            raise _placed(error, f"steps.{number}.schema") from None
        _check_line(step, settings, place=f"steps.{number}")


def _check_prompt(step: Step) -> None:
    template = check(step.prompt)
    has_previous = step.source.step is not None and step.source.group_by is None
    if "previous" in template.names and not has_previous:
        raise InputError(
            "`previous` is the answer of an earlier step for the row, but the source of this one is not a step, or it "
            'is groups. A column of that name is {{ row["previous"] }}.'
        )


def _check_columns(definition: Definition, step: Step) -> None:
    if step.response_schema is None:
        return
    columns = answer_columns(step.response_schema)
    check_keywords(step.response_schema)
    require_free(columns, has_thoughts=step.thoughts)
    if comes_to_parquet(definition, step):
        require_narrow(columns)


def _check_line(step: Step, settings: Settings, *, place: str) -> None:
    line = line_of(step, "row", messages=[Message(role="user", content="a row")])
    checked = check_lines([line + b"\n"], endpoint=CHAT_ENDPOINT, models=[step.model], contexts={}, settings=settings)
    for problem in checked.listed:
        is_schema = "response_format" in problem["message"] or "schema" in problem["message"]
        where = f"{place}.{'schema' if is_schema else 'parameters'}"
        raise InputError(f"{where}: {problem['message']}", param=where, code="invalid_pipeline")


def _placed(error: InputError, place: str) -> InputError:
    return InputError(f"{place}: {error.message}", param=place, code="invalid_pipeline")
