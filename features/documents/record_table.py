"""The fields of records as table columns, typed by their schema.

Extra columns say how certain a row is, since a table has no evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, BinaryIO

from features.documents.extraction.fields.schema import FieldSchema
from features.pipelines.rows.outputs.column_types import ColumnType, Kind, answer_columns
from features.pipelines.rows.outputs.tables import TableWriter, arrow_fields, open_table
from features.pipelines.rows.sources.files import Format
from tokenmill.packages import needed

_OWN = {
    "document": Kind.STRING,
    "sha256": Kind.STRING,
    "error": Kind.STRING,
    "review": Kind.BOOLEAN,
    "score": Kind.NUMBER,
    "notes": Kind.STRING,
}
"""Columns added to those of the schema. A field with one of these names, in any case since many databases ignore case,
becomes `fields.NAME`; no field name contains a full stop."""


def table_columns(schema: FieldSchema) -> dict[str, ColumnType]:
    """Return the columns of the table. Raises InputError if a field has no single type."""
    own = {name: ColumnType(kind=kind, place="$") for name, kind in _OWN.items()}
    return own | {_column(name): column for name, column in answer_columns(schema.output_schema()).items()}


def require_table(schema: FieldSchema) -> None:
    """Raise InputError if no table can hold these fields, or pyarrow is not installed."""
    arrow_fields(table_columns(schema))


def open_parquet(target: BinaryIO, columns: Mapping[str, ColumnType]) -> AbstractContextManager[TableWriter]:
    """Return a writer of Parquet. Raises InputError if pyarrow is not installed."""
    arrow = needed("pyarrow", by="writing Parquet")
    types = arrow.schema(arrow_fields(columns))
    return open_table(target, Format.PARQUET, columns=list(columns), schema=types)


def row_of(record: Mapping[str, Any], columns: Mapping[str, ColumnType]) -> dict[str, Any]:
    """Return the row of a record."""
    fields = {_column(name): value for name, value in (record["fields"] or {}).items()}
    error = record["error"] and f"{record['error']['message']} ({record['error']['code']})"
    own = {"document": record["document"], "sha256": record["sha256"], "error": error, **_surety(record)}
    return {name: (own | fields).get(name) for name in columns}


def _surety(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether a person should review a record, the lowest score of its values, and its notes.

    Reviewed values count as certain. A failed document needs a review and has no score.
    """
    undecided = [each for each in record["evidence"] if "reviewed" not in each]
    return {
        "review": record["error"] is not None or any(each["review"] for each in undecided),
        "score": min((each["score"] for each in undecided), default=None),
        "notes": "; ".join([*_notes_of(undecided), *record.get("notes", ())]) or None,
    }


def _notes_of(evidence: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"{each['path']}: {each['note']}" for each in evidence if "note" in each]


def _column(name: str) -> str:
    return f"fields.{name}" if name.casefold() in _OWN else name
