"""Renders a table with a prompt: for each row a line of a batch's input, or an error."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from features.pipelines.rows.sources.source import Source
from features.pipelines.rows.templates.renderer import Message, Renderer, RowError
from features.pipelines.rows.templates.template import CheckedTemplate, Template
from jobs.errors import InputError

ENDPOINT = "/v1/chat/completions"
WHOLE_ROW = "row"
"""The name of the whole row in templates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The part of the request that is the same for every row."""

    model: str
    params: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the body, such as `max_tokens`."""
    schema: Mapping[str, Any] | None = None
    """Schema of the answer; None for a text."""

    def body(self) -> dict[str, Any]:
        """Return a line's body without its messages."""
        if self.schema is None:
            return {"model": self.model, **self.params}
        form = {"name": "answer", "schema": self.schema, "strict": True}
        return {"model": self.model, **self.params, "response_format": {"type": "json_schema", "json_schema": form}}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLine:
    """One row's line."""

    index: int
    """Number of the row in its source, from 1."""
    messages: Sequence[Message]
    line: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrenderedRow:
    """A row that became no line."""

    index: int
    error: str


def custom_id(index: int) -> str:
    return f"row-{index}"


def index_of(custom_id: object) -> int | None:
    """Return the row number of a result; None if the line is not ours."""
    text = str(custom_id)
    return int(text.removeprefix("row-")) if text.startswith("row-") and text[4:].isdecimal() else None


def require_columns(template: CheckedTemplate, columns: Sequence[str] | None) -> None:
    """Raise InputError if a template uses a column that no row has, if the columns are known."""
    if columns is None:
        return
    for name in sorted(template.names - {WHOLE_ROW} - set(columns)):
        listed = ", ".join(columns)
        raise InputError(
            f"the prompt takes {{{{ {name} }}}}, and the source has no such column. Its columns are: {listed}; "
            f'`{WHOLE_ROW}` is the whole row, so a column whose name is not a word is {{{{ {WHOLE_ROW}["…"] }}}}.',
            param="template",
            code="invalid_template",
        )


def request_lines(source: Source, template: Template, ask: Ask) -> Generator[RequestLine | UnrenderedRow, None, None]:
    """Yield the line or the error of each row of a source, in order."""
    body = ask.body()
    with Renderer(template) as renderer:
        outcomes = renderer.render(shown_to(template, row.values) for row in source.read())
        for index, outcome in enumerate(outcomes, start=1):
            if isinstance(outcome, RowError):
                yield UnrenderedRow(index=index, error=outcome.message)
            else:
                yield RequestLine(
                    index=index, messages=outcome.messages, line=_line(index, outcome.messages, body=body)
                )


def shown_to(template: Template, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return only the variables that the template names, so that other columns cost nothing."""
    variables = {name: values[name] for name in template.words if name in values}
    if WHOLE_ROW in template.words:
        variables[WHOLE_ROW] = dict(values)
    return variables


def _line(index: int, messages: Sequence[Message], *, body: Mapping[str, Any]) -> bytes:
    chat = [{"role": message.role, "content": message.content} for message in messages]
    line = {"custom_id": custom_id(index), "method": "POST", "url": ENDPOINT, "body": {**body, "messages": chat}}
    return orjson.dumps(line) + b"\n"
