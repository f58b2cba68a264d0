"""The rows of a step as read, stored as an object with one row per line, with the ids that join them to batch lines.

A source may change during a run; the output has the rows as they were read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jobs.batches.ordered_results import MAX_LINE_BYTES, OrderedResults
from jobs.lines.reading import iter_lines
from jobs.storage import Storage
from tokenmill.row_json import dumps, loads


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One row."""

    custom_id: str
    """The same in all steps of a run."""
    values: Mapping[str, Any]
    error: str | None
    """Why it became no line; None if it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredRow:
    """A row, and its line in the batch's output or error file; None if there is none."""

    row: StepRow
    line: Mapping[str, Any] | None


def encode(row: StepRow) -> bytes:
    """Return a row as a line, without its newline."""
    fields = {"custom_id": row.custom_id, "row": dict(row.values), "error": row.error}
    return dumps(fields)


def read_rows(storage: Storage, key: str) -> Iterator[StepRow]:
    """Yield the rows of a step in order. Raise NotFoundError if the store has lost them."""
    for line in iter_lines(storage.iter_chunks(key), max_line_bytes=MAX_LINE_BYTES):
        assert line.content is not None, "rows are shorter"
        fields = loads(line.content)
        yield StepRow(custom_id=fields["custom_id"], values=fields["row"], error=fields["error"])


def answered(
    storage: Storage, rows_key: str, *, output_key: str | None, errors_key: str | None
) -> Iterator[AnsweredRow]:
    """Yield the rows of a step with their answers, holding a piece of each file: all have the same order."""
    outputs, errors = OrderedResults(storage, output_key), OrderedResults(storage, errors_key)
    for row in read_rows(storage, rows_key):
        line = None if row.error is not None else outputs.take(row.custom_id) or errors.take(row.custom_id)
        yield AnsweredRow(row=row, line=line)
