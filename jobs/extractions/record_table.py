"""The fields of records as the columns of a table, with the types that their schema gives them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, BinaryIO

from extraction.fields.schema import FieldSchema
from pipelines.outputs.column_types import ColumnType, Kind, answer_columns
from pipelines.outputs.tables import TableWriter, arrow_fields, open_table
from pipelines.packages import needed
from pipelines.sources.files import Format

_OWN = ("document", "sha256", "error")
"""Columns beside those of the schema; a field of one of these names is `fields.NAME`."""


def table_columns(schema: FieldSchema) -> dict[str, ColumnType]:
    """Return the columns of the table. Raises InputError where a field has no one type."""
    text = ColumnType(kind=Kind.STRING, place="$")
    return dict.fromkeys(_OWN, text) | {
        _column(name): column for name, column in answer_columns(schema.output_schema()).items()
    }


def require_table(schema: FieldSchema) -> None:
    """Raise InputError where no table can have these fields, or pyarrow is not installed."""
    arrow_fields(table_columns(schema))


def open_parquet(target: BinaryIO, columns: Mapping[str, ColumnType]) -> AbstractContextManager[TableWriter]:
    """Return a writer of Parquet. Raises InputError where pyarrow is not installed."""
    arrow = needed("pyarrow", by="writing Parquet")
    types = arrow.schema(arrow_fields(columns))
    return open_table(target, Format.PARQUET, columns=list(columns), schema=types)


def row_of(record: Mapping[str, Any], columns: Mapping[str, ColumnType]) -> dict[str, Any]:
    """Return the row of a record."""
    fields = {_column(name): value for name, value in (record["fields"] or {}).items()}
    error = record["error"] and f"{record['error']['message']} ({record['error']['code']})"
    own = {"document": record["document"], "sha256": record["sha256"], "error": error}
    return {name: (own | fields).get(name) for name in columns}


def _column(name: str) -> str:
    return f"fields.{name}" if name in _OWN else name
