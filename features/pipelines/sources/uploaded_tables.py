"""An uploaded table: its columns, and its rows rendered with a prompt into the input of a batch.

Its owner waits, so it is bounded; larger tables need a pipeline or `tokenmill map`.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import PurePath
from typing import Any

import orjson

from features.pipelines.rows.lines.requests import Ask, RequestLine, UnrenderedRow, request_lines, require_columns
from features.pipelines.rows.sources.files import ALLOWED, SourceFile, format_of
from features.pipelines.rows.sources.reading import source_of
from features.pipelines.rows.sources.source import Source
from features.pipelines.rows.templates.template import check
from jobs.batches import made_inputs
from jobs.errors import InputError, NotFoundError, TooLargeError
from jobs.files import NewFile
from jobs.settings import MIB, Settings
from jobs.storage import Storage
from tokenmill.row_json import dumps

MAX_TABLE_BYTES = 32 * MIB
"""Size of the file, which is held in memory."""
MAX_ROWS = 50_000
MAX_LINES_BYTES = 256 * MIB
MAX_SECONDS = 60
"""Time limit of reading and of rendering: the number of rows limits neither, as a row may be expensive or blank."""
SHOWN = 3
SHOWN_BYTES = 64 << 10
"""A row or a line that is longer is not shown."""
LISTED = 20
"""Most errors of rows that are reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedTable:
    """One file as rows."""

    filename: str
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLook:
    """The beginning of a table."""

    columns: list[str]
    rows: list[dict[str, Any]]


class _Deadline:
    """The deadline of a call; `check` raises TooLargeError after it."""

    def __init__(self) -> None:
        self._at = time.monotonic() + MAX_SECONDS

    def check(self) -> None:
        if time.monotonic() >= self._at:
            raise _too_large(f"The table takes more than {MAX_SECONDS} seconds")


class _Content(io.BytesIO):
    """A file in memory with a time limit on reading, however much it unpacks to."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self._deadline = _Deadline()

    def read(self, size: int | None = -1, /) -> bytes:
        self._deadline.check()
        return super().read(size)


@dataclass(slots=True, kw_only=True)
class _Outcomes:
    """Counts of the outcomes of rows."""

    num_rows: int = 0
    num_failed: int = 0
    size_bytes: int = 0
    errors: list[UnrenderedRow] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRequests:
    """The input made from a table."""

    new: NewFile
    num_rows: int
    num_failed: int
    errors: list[UnrenderedRow]
    """The first LISTED."""
    lines: list[dict[str, Any]]
    """The first SHOWN."""


def open_table(storage: Storage, key: str, *, filename: str, size_bytes: int) -> UploadedTable:
    """Read a file whose name is that of a table. Raise InputError if it is not, or TooLargeError."""
    form = format_of(filename)
    if form is None:
        raise InputError(f"File {filename!r} is not a table by its name. Upload it with {ALLOWED}.", param="file_id")
    if size_bytes > MAX_TABLE_BYTES:
        raise _too_large(f"The table has {size_bytes:,} bytes, and {MAX_TABLE_BYTES:,} are allowed")
    try:
        content = b"".join(storage.iter_chunks(key))
    except NotFoundError:
        raise NotFoundError(f"The content of file {filename!r} is lost. Upload it again.", param="file_id") from None
    file = SourceFile(name=filename, format=form, open=lambda: _Content(content), identity=lambda: key)
    return UploadedTable(filename=filename, source=source_of([file], description=filename))


def look(table: UploadedTable) -> TableLook:
    """Return a table's columns and first rows. Raise InputError if these cannot be read."""
    rows = [dict(row.values) for row in islice(table.source.read(), SHOWN)]
    columns = table.source.columns or dict.fromkeys(name for row in rows for name in row)
    try:
        encoded = [dumps(row) for row in rows]
    except TypeError as error:
        raise InputError(f"{table.filename} has a row that cannot be shown: {error}.", param="file_id") from None
    shown = [orjson.loads(row) for row in encoded if len(row) <= SHOWN_BYTES]
    return TableLook(columns=list(columns), rows=shown)


def write_requests(
    table: UploadedTable, prompt: str, ask: Ask, storage: Storage, key: str, *, settings: Settings
) -> WrittenRequests:
    """Write a line for each row that fits the prompt into an object that no row names yet; nothing after an error.

    Raise InputError with the place in the prompt, with an unreadable row, or if no row fits.
    """
    template = check(prompt)
    require_columns(template, table.source.columns)
    outcomes = _Outcomes()
    with closing(request_lines(table.source, template, ask)) as requests:
        filename = f"{PurePath(table.filename).stem}_requests.jsonl"
        lines = _lines(table, requests, outcomes)
        new = made_inputs.write_input(storage, key, lines, filename=filename, settings=settings)
    return WrittenRequests(
        new=new,
        num_rows=outcomes.num_rows,
        num_failed=outcomes.num_failed,
        errors=outcomes.errors,
        lines=outcomes.lines,
    )


def _lines(
    table: UploadedTable, requests: Iterator[RequestLine | UnrenderedRow], outcomes: _Outcomes
) -> Iterator[bytes]:
    deadline = _Deadline()
    for one in requests:
        deadline.check()
        outcomes.num_rows += 1
        if outcomes.num_rows > MAX_ROWS:
            raise _too_large(f"The table has more than {MAX_ROWS:,} rows")
        if isinstance(one, UnrenderedRow):
            outcomes.num_failed += 1
            if len(outcomes.errors) < LISTED:
                outcomes.errors.append(one)
            continue
        outcomes.size_bytes += len(one.line)
        if outcomes.size_bytes > MAX_LINES_BYTES:
            raise _too_large(f"The prompts of the first {one.index:,} rows have more than {MAX_LINES_BYTES:,} bytes")
        if len(outcomes.lines) < SHOWN and len(one.line) <= SHOWN_BYTES:
            outcomes.lines.append(orjson.loads(one.line))
        yield one.line.removesuffix(b"\n")
    if outcomes.num_rows == outcomes.num_failed:
        first = f" Row {outcomes.errors[0].index}: {outcomes.errors[0].error}." if outcomes.errors else ""
        several = (
            f"None of the {outcomes.num_rows:,} rows fits the prompt." if outcomes.num_rows else "There is no row."
        )
        which = "Its only row does not fit the prompt." if outcomes.num_rows == 1 else several
        raise InputError(f"{table.filename}: {which}{first}", param="prompt", code="invalid_template")


def _too_large(problem: str) -> TooLargeError:
    return TooLargeError(
        f"{problem} in this call. Use `tokenmill map`, which has no such limit, a pipeline over a store, or smaller "
        "tables.",
        param="file_id",
        code="table_too_large",
    )
