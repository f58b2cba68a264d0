"""The requests of a step: what each row's messages are sent with, and whether a worker could serve that. No SQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from jobs.batches.estimating import check_lines
from jobs.errors import InputError
from jobs.lines.bodies import CHAT_ENDPOINT
from jobs.pipelines.spec import Definition, Step
from jobs.settings import Settings
from pipelines.outputs.column_types import answer_columns
from pipelines.templates.renderer import Message
from pipelines.templates.template import check


def line_of(step: Step, custom_id: str, *, messages: Iterable[Message]) -> bytes:
    """Return the line of a batch that asks a step's model."""
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
    """Compile each prompt, check each step's schema and parameters. Raises InputError with the place.

    Starts a process for each prompt: not under a session.
    """
    for number, step in enumerate(definition.steps):
        try:
            check(step.prompt)
        except InputError as error:
            raise _placed(error, f"steps.{number}.prompt") from None
        try:
            if step.response_schema is not None:
                answer_columns(step.response_schema)
        except InputError as error:
            raise _placed(error, f"steps.{number}.schema") from None
        _check_line(step, settings, place=f"steps.{number}")


def _check_line(step: Step, settings: Settings, *, place: str) -> None:
    line = line_of(step, "row", messages=[Message(role="user", content="a row")])
    checked = check_lines([line + b"\n"], endpoint=CHAT_ENDPOINT, models=[step.model], contexts={}, settings=settings)
    for problem in checked.listed:
        raise InputError(f"{place}: {problem['message']}", param=place, code="invalid_pipeline")


def _placed(error: InputError, place: str) -> InputError:
    return InputError(f"{place}: {error.message}", param=place, code="invalid_pipeline")
