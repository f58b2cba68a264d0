"""Writers of tables as JSONL, CSV or Parquet, in constant memory."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self

import orjson

from features.pipelines.rows.outputs.column_types import ColumnType, Kind, require_narrow
from features.pipelines.rows.sources.files import Format
from jobs.errors import InputError
from tokenmill.packages import needed
from tokenmill.row_json import dumps

_GROUP_ROWS = 4096
"""Rows in a row group of Parquet; fewer if they exceed _GROUP_BYTES."""
_GROUP_BYTES = 32 << 20


class TableWriter(Protocol):
    """A writer; use it as a context manager. The table is complete only if the context ends without an exception."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a row with the table's columns as names; a missing one is null."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def output_format(name: str) -> Format:
    """Return the format of an output's name. Raise InputError."""
    suffix = name.rpartition(".")[2].lower()
    if suffix not in tuple(Format):
        raise InputError(f"cannot tell the format of {name}. Its name must end in .jsonl, .csv or .parquet.")
    return Format(suffix)


def open_table(
    target: BinaryIO, form: Format, *, columns: Sequence[str] | None, schema: Any | None = None
) -> TableWriter:
    """Return a writer of a table. CSV needs the columns, Parquet their pyarrow.Schema."""
    if form is Format.JSONL:
        return _JsonLines(target)
    if form is Format.CSV:
        assert columns is not None
        return _Csv(target, columns)
    assert schema is not None
    return _Parquet(target, schema)


class _JsonLines:
    def __init__(self, target: BinaryIO) -> None:
        self._target = target

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def write(self, row: Mapping[str, Any]) -> None:
        self._target.write(dumps(dict(row)) + b"\n")


class _Csv:
    """Writes texts and numbers unchanged, null as an empty field, times as in JSON without quotes, the rest as JSON."""

    def __init__(self, target: BinaryIO, columns: Sequence[str]) -> None:
        self._columns = columns
        self._text = io.TextIOWrapper(target, encoding="utf-8", newline="", write_through=False)
        self._writer = csv.writer(self._text, lineterminator="\n")

    def __enter__(self) -> Self:
        self._writer.writerow(self._columns)
        return self

    def __exit__(self, *_: object) -> None:
        self._text.detach()  # flushes without closing the file

    def write(self, row: Mapping[str, Any]) -> None:
        self._writer.writerow([_field(row.get(name)) for name in self._columns])


def _field(value: Any) -> Any:
    if value is None or type(value) in (str, int):
        return value
    written = dumps(value)
    return orjson.loads(written) if written.startswith((b'"', b"null")) else written.decode()


class _Parquet:
    def __init__(self, target: BinaryIO, schema: Any) -> None:
        self._schema = schema
        self._arrow = needed("pyarrow", by="writing Parquet")
        self._writer = needed("pyarrow.parquet", by="writing Parquet").ParquetWriter(target, schema, compression="zstd")
        self._rows: list[Mapping[str, Any]] = []
        self._num_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            self._writer.close()

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a row. Raise InputError if Parquet cannot hold a value of this row or of an earlier one."""
        self._rows.append(row)
        self._num_bytes += size_of(row)
        if len(self._rows) >= _GROUP_ROWS or self._num_bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        try:
            self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
        except (self._arrow.ArrowException, OverflowError) as error:
            raise several_types(str(error)) from None
        self._rows, self._num_bytes = [], 0


def size_of(value: Any) -> int:
    """Return the approximate bytes of a value: the length of texts, a word for anything else."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(size_of, value.values()))
    return sum(map(size_of, value)) if isinstance(value, (list, tuple)) else 8


def require_writable(schema: Any, rows: Iterable[Mapping[str, Any]] = ()) -> None:
    """Raise InputError if Parquet cannot hold the columns or rows, before anything is computed."""
    arrow = needed("pyarrow", by="writing Parquet")
    with Path(os.devnull).open("wb") as nowhere:
        try:
            table = open_table(nowhere, Format.PARQUET, columns=None, schema=schema)
        except arrow.ArrowException as error:
            raise several_types(str(error)) from None
        with table:
            for row in rows:
                table.write(row)


def several_types(reason: str) -> InputError:
    return InputError(
        f"the rows cannot be written as Parquet, where a column has one type: {reason.splitlines()[0]}. Write JSONL, "
        "or make the column's values alike.",
        code="invalid_source",
    )


def arrow_fields(columns: Mapping[str, ColumnType]) -> list[Any]:
    """Return the pyarrow.Field of each column. Raise InputError with the place of one without a single type."""
    require_narrow(columns)
    return _fields(columns)


def _fields(columns: Mapping[str, ColumnType]) -> list[Any]:
    arrow = needed("pyarrow", by="writing Parquet")
    return [arrow.field(name, _arrow_type(column)) for name, column in columns.items()]


def _arrow_type(column: ColumnType) -> Any:
    arrow = needed("pyarrow", by="writing Parquet")
    if column.kind is Kind.ARRAY:
        assert column.item is not None
        return arrow.list_(_arrow_type(column.item))
    if column.kind is Kind.OBJECT:
        assert column.fields, "it is narrow"
        return arrow.struct(_fields(column.fields))
    plain = {
        Kind.STRING: arrow.string(),
        Kind.INTEGER: arrow.int64(),
        Kind.NUMBER: arrow.float64(),
        Kind.BOOLEAN: arrow.bool_(),
    }
    return plain[column.kind]
