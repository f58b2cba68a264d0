"""The rows of a step as they were read, kept as an object: a line each, with what its lines of a batch are joined by.

A source may change while a run goes on; what is put out is what was read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import orjson

from jobs.lines.reading import iter_lines
from jobs.settings import MIB
from jobs.storage import Storage

_MAX_LINE_BYTES = 64 * MIB  # far above what a row may have


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One row."""

    custom_id: str
    """The same through all steps of a run."""
    values: Mapping[str, Any]
    error: str | None
    """Why it became no line; None: it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredRow:
    """A row, and the line of its batch's output or error file; None where there is none."""

    row: StepRow
    line: Mapping[str, Any] | None


def encode(row: StepRow) -> bytes:
    """Return a row as a line, without its newline."""
    given = {"custom_id": row.custom_id, "row": dict(row.values), "error": row.error}
    return orjson.dumps(given, default=_plain, option=orjson.OPT_NON_STR_KEYS)


def read_rows(storage: Storage, key: str) -> Iterator[StepRow]:
    """Yield the rows of a step in order. Raises NotFoundError where the store has lost them."""
    for line in iter_lines(storage.iter_chunks(key), max_line_bytes=_MAX_LINE_BYTES):
        assert line.content is not None, "rows are shorter"
        found = orjson.loads(line.content)
        yield StepRow(custom_id=found["custom_id"], values=found["row"], error=found["error"])


def answered(
    storage: Storage, rows_key: str, *, output_key: str | None, errors_key: str | None
) -> Iterator[AnsweredRow]:
    """Yield the rows of a step with their answers, in memory of a piece of each file: all have the same order."""
    outputs, errors = _Lines(storage, output_key), _Lines(storage, errors_key)
    for row in read_rows(storage, rows_key):
        line = None if row.error is not None else outputs.take(row.custom_id) or errors.take(row.custom_id)
        yield AnsweredRow(row=row, line=line)


class _Lines:
    """The lines of a result file, taken one after the other."""

    def __init__(self, storage: Storage, key: str | None) -> None:
        pieces = iter(()) if key is None else storage.iter_chunks(key)
        self._lines = iter_lines(pieces, max_line_bytes=_MAX_LINE_BYTES)
        self._next = self._read()

    def take(self, custom_id: str) -> Mapping[str, Any] | None:
        if self._next is None or self._next["custom_id"] != custom_id:
            return None
        taken, self._next = self._next, self._read()
        return taken

    def _read(self) -> Mapping[str, Any] | None:
        line = next(self._lines, None)
        if line is None or line.content is None:
            return None
        found: Mapping[str, Any] = orjson.loads(line.content)
        return found


def _plain(value: Any) -> Any:
    """Write what JSON has no form for as people do."""
    if isinstance(value, (Decimal, timedelta)):
        return str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    raise TypeError(f"a value of type {type(value).__name__}")
