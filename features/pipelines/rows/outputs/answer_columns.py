"""Turns a model's answer into the values of its columns, or an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from features.pipelines.rows.outputs.column_types import ColumnType, Kind
from tokenmill.row_json import loads

TEXT_COLUMN = "answer"
"""The column of an answer without a schema."""
THOUGHTS_COLUMN = "thoughts"
"""The column of the thoughts before an answer, where it is asked for."""

_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The values of the answer's columns, or an error without values, except for its thoughts."""

    values: Mapping[str, Any]
    error: str | None = None


class UnfitAnswerError(Exception):
    """An answer does not fit its columns."""


def answer_of(
    line: Mapping[str, Any], columns: Mapping[str, ColumnType] | None, *, has_thoughts: bool = False
) -> Answer:
    """Parse a line of a batch's output or error file; with `columns` None the answer is a text."""
    thoughts = {THOUGHTS_COLUMN: _thoughts_of(line)} if has_thoughts else {}
    try:
        text = _text_of(line, needs_end=columns is not None)
        return Answer(values=({TEXT_COLUMN: text} if columns is None else _values_of(text, columns)) | thoughts)
    except UnfitAnswerError as error:
        return Answer(values=thoughts, error=str(error))


def _thoughts_of(line: Mapping[str, Any]) -> str | None:
    """Return the thoughts of a line's answer, cut ones too; None if there are none."""
    choices = ((line.get("response") or {}).get("body") or {}).get("choices") or [{}]
    message = choices[0].get("message") or {}
    thoughts = message.get("reasoning_content") or message.get("reasoning")  # newer vLLM's name
    return None if thoughts is None else str(thoughts)


def _text_of(line: Mapping[str, Any], *, needs_end: bool) -> str:
    response = line.get("response") or {}
    body = response.get("body") or {}
    failure = line.get("error") or (body.get("error") if response.get("status_code", 200) >= 400 else None)
    if failure is not None:
        raise UnfitAnswerError(f"{failure.get('message') or 'the line failed'} ({failure.get('code')})")
    choices = body.get("choices") or []
    if not choices:
        raise UnfitAnswerError("there is no answer (empty)")
    if choices[0].get("reasoning_finish_reason") == "length":
        raise UnfitAnswerError(
            "the answer was truncated in its thoughts: raise max_tokens, or set a thinking_token_budget (length)"
        )
    if needs_end and choices[0].get("finish_reason") == "length":
        raise UnfitAnswerError("the answer was truncated: ended by max_tokens or the context (length)")
    message = choices[0].get("message") or {}
    if message.get("content") is None:
        raise UnfitAnswerError(f"there is no answer ({message.get('refusal') or 'empty'})")
    return str(message["content"])


def _values_of(text: str, columns: Mapping[str, ColumnType]) -> dict[str, Any]:
    try:
        answer = loads(text.encode())
    except ValueError as error:
        raise UnfitAnswerError(f"the answer is not JSON: {error} (invalid_json)") from None
    if not isinstance(answer, dict):
        raise UnfitAnswerError("the answer is not a JSON object (invalid_json)")
    return {name: _fitted(answer.get(name), column, place=name) for name, column in columns.items()}


def _fitted(value: Any, column: ColumnType, *, place: str) -> Any:
    """Return a value converted to its column. Raise UnfitAnswerError, as some servers do not enforce schemas."""
    if value is None or column.kind is Kind.ANY:
        return value
    if column.kind is Kind.ARRAY and isinstance(value, list) and column.item is not None:
        return [_fitted(item, column.item, place=f"{place}[{index}]") for index, item in enumerate(value)]
    if column.kind is Kind.OBJECT and isinstance(value, dict):
        return _fitted_object(value, column, place=place)
    if not _is_plain(value, column.kind):
        raise UnfitAnswerError(
            f"{place} of the answer is no {column.kind.value} that fits: {_shown(value)} (invalid_type)"
        )
    return float(value) if column.kind is Kind.NUMBER else value


def _fitted_object(value: Mapping[str, Any], column: ColumnType, *, place: str) -> dict[str, Any]:
    if column.fields is None:
        return dict(value)
    return {name: _fitted(value.get(name), field, place=f"{place}.{name}") for name, field in column.fields.items()}


def _is_plain(value: Any, kind: Kind) -> bool:
    if kind is Kind.INTEGER:
        return type(value) is int and value in _INT64
    if kind is Kind.NUMBER:
        return type(value) in (int, float)
    return type(value) is {Kind.STRING: str, Kind.BOOLEAN: bool}.get(kind)


def _shown(value: Any) -> str:
    return repr(value)[:80]
