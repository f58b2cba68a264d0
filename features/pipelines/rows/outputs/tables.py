"""Tables being written: rows go in, in order, bytes of JSONL, CSV or Parquet come out; memory stays flat."""

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
"""Of Parquet: a row group; fewer where they are more than _GROUP_BYTES."""
_GROUP_BYTES = 32 << 20


class TableWriter(Protocol):
    """Use as a context manager; only what ended without an exception is a whole table."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a row, whose names are the table's columns; one that is missing is null."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def output_format(name: str) -> Format:
    """Return what the name of an output asks for. Raises InputError."""
    suffix = name.rpartition(".")[2].lower()
    if suffix not in tuple(Format):
        raise InputError(f"cannot tell what {name} is to be. Its name must end in .jsonl, .csv or .parquet.")
    return Format(suffix)


def open_table(
    target: BinaryIO, form: Format, *, columns: Sequence[str] | None, schema: Any | None = None
) -> TableWriter:
    """Return a writer of a table. CSV needs the columns, Parquet a pyarrow.Schema of them."""
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
    """Texts and numbers as they are, null as nothing, all else as JSON: times without its quotes."""

    def __init__(self, target: BinaryIO, columns: Sequence[str]) -> None:
        self._columns = columns
        self._text = io.TextIOWrapper(target, encoding="utf-8", newline="", write_through=False)
        self._writer = csv.writer(self._text, lineterminator="\n")

    def __enter__(self) -> Self:
        self._writer.writerow(self._columns)
        return self

    def __exit__(self, *_: object) -> None:
        self._text.detach()  # flushes, and leaves the file to its owner

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
        """Add a row. Raises InputError where Parquet has no place for a value of this row or one before."""
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
    """Return about how many bytes a value takes: of texts their length, of all else a word."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(size_of, value.values()))
    return sum(map(size_of, value)) if isinstance(value, (list, tuple)) else 8


def require_writable(schema: Any, rows: Iterable[Mapping[str, Any]] = ()) -> None:
    """Raise InputError where Parquet takes no such columns or rows: now, and not when all is computed."""
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
    """Return the pyarrow.Field of each column. Raises InputError with the place of one that has no single type."""
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
