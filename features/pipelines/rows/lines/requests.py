"""A table through a prompt: for each row a line of a batch's input, or why there is none."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from features.pipelines.rows.sources.source import Source
from features.pipelines.rows.templates.renderer import Message, Renderer, RowError
from features.pipelines.rows.templates.template import Template
from jobs.errors import InputError

ENDPOINT = "/v1/chat/completions"
WHOLE_ROW = "row"
"""The name under which a template has all of a row, whatever its columns are called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What every row asks for."""

    model: str
    params: Mapping[str, Any] = field(default_factory=dict)
    """Of the body, such as `max_tokens`."""
    schema: Mapping[str, Any] | None = None
    """That the answer must fit; None for a text."""

    def body(self) -> dict[str, Any]:
        """Return all of a line's body but its messages."""
        if self.schema is None:
            return {"model": self.model, **self.params}
        form = {"name": "answer", "schema": self.schema, "strict": True}
        return {"model": self.model, **self.params, "response_format": {"type": "json_schema", "json_schema": form}}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLine:
    """One row's line."""

    index: int
    """Of the row in its source, from 1."""
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
    """Return which row a result is for; None for no line of ours."""
    text = str(custom_id)
    return int(text.removeprefix("row-")) if text.startswith("row-") and text[4:].isdecimal() else None


def require_columns(template: Template, columns: Sequence[str] | None) -> None:
    """Raise InputError where a template takes a column that no row has, as far as that is known."""
    if columns is None:
        return
    for name in sorted(template.names - {WHOLE_ROW} - set(columns)):
        shown = ", ".join(columns)
        raise InputError(
            f"the prompt takes {{{{ {name} }}}}, and the source has no such column. Its columns are: {shown}; "
            f'`{WHOLE_ROW}` is all of them, so one whose name is no word is {{{{ {WHOLE_ROW}["…"] }}}}.',
            param="template",
            code="invalid_template",
        )


def request_lines(source: Source, template: Template, ask: Ask) -> Generator[RequestLine | UnrenderedRow, None, None]:
    """Yield what each row of a source becomes, in order."""
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
    """Return what the template may take of a row, and no more: what it does not name costs nothing."""
    shown = {name: values[name] for name in template.words if name in values}
    if WHOLE_ROW in template.words:
        shown[WHOLE_ROW] = dict(values)
    return shown


def _line(index: int, messages: Sequence[Message], *, body: Mapping[str, Any]) -> bytes:
    said = [{"role": message.role, "content": message.content} for message in messages]
    line = {"custom_id": custom_id(index), "method": "POST", "url": ENDPOINT, "body": {**body, "messages": said}}
    return orjson.dumps(line) + b"\n"
