"""The rows of a step as they were read, kept as an object: a line each, with what its lines of a batch are joined by.

A source may change while a run goes on; what is put out is what was read.
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
    return dumps(given)


def read_rows(storage: Storage, key: str) -> Iterator[StepRow]:
    """Yield the rows of a step in order. Raises NotFoundError where the store has lost them."""
    for line in iter_lines(storage.iter_chunks(key), max_line_bytes=MAX_LINE_BYTES):
        assert line.content is not None, "rows are shorter"
        found = loads(line.content)
        yield StepRow(custom_id=found["custom_id"], values=found["row"], error=found["error"])


def answered(
    storage: Storage, rows_key: str, *, output_key: str | None, errors_key: str | None
) -> Iterator[AnsweredRow]:
    """Yield the rows of a step with their answers, in memory of a piece of each file: all have the same order."""
    outputs, errors = OrderedResults(storage, output_key), OrderedResults(storage, errors_key)
    for row in read_rows(storage, rows_key):
        line = None if row.error is not None else outputs.take(row.custom_id) or errors.take(row.custom_id)
        yield AnsweredRow(row=row, line=line)
