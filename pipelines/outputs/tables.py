"""Tables being written: rows go in, in order, bytes of JSONL, CSV or Parquet come out; memory stays flat."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self

import orjson

from jobs.errors import InputError
from pipelines.outputs.column_types import ColumnType, Kind
from pipelines.packages import needed
from pipelines.sources.files import Format

_GROUP_ROWS = 4096
"""Of Parquet: a row group."""


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
        self._target.write(_json(dict(row)) + b"\n")


class _Csv:
    """Texts and numbers as they are, null as nothing, truth values and all with parts as JSON."""

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
    if isinstance(value, (bool, list, dict, bytes)):
        return _json(value).decode()
    return value


def _json(value: Any) -> bytes:
    return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS)


def _plain(value: Any) -> Any:
    """Write what JSON has no form for: bytes as hexadecimal digits, numbers of any precision as texts."""
    return value.hex() if isinstance(value, bytes) else str(value)


class _Parquet:
    def __init__(self, target: BinaryIO, schema: Any) -> None:
        self._schema = schema
        self._arrow = needed("pyarrow", by="writing Parquet")
        self._writer = needed("pyarrow.parquet", by="writing Parquet").ParquetWriter(target, schema, compression="zstd")
        self._rows: list[Mapping[str, Any]] = []

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
        self._rows.append(row)
        if len(self._rows) >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
            self._rows = []


def arrow_fields(columns: Mapping[str, ColumnType]) -> list[Any]:
    """Return the pyarrow.Field of each column. Raises InputError with the place of one that has no single type."""
    arrow = needed("pyarrow", by="writing Parquet")
    return [arrow.field(name, _arrow_type(column)) for name, column in columns.items()]


def _arrow_type(column: ColumnType) -> Any:
    arrow = needed("pyarrow", by="writing Parquet")
    if column.kind is Kind.ANY:
        raise InputError(
            f"the schema is too wide for Parquet, where a column has one type: at {column.place}, {column.problem}. "
            "Narrow it, or write JSONL.",
            param="schema",
            code="invalid_schema",
        )
    if column.kind is Kind.ARRAY:
        assert column.item is not None
        return arrow.list_(_arrow_type(column.item))
    if column.kind is Kind.OBJECT:
        if not column.fields:
            raise InputError(
                f"the schema cannot be written as Parquet: at {column.place}, the object has no properties.",
                param="schema",
                code="invalid_schema",
            )
        return arrow.struct(arrow_fields(column.fields))
    plain = {
        Kind.STRING: arrow.string(),
        Kind.INTEGER: arrow.int64(),
        Kind.NUMBER: arrow.float64(),
        Kind.BOOLEAN: arrow.bool_(),
    }
    return plain[column.kind]
