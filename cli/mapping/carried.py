"""A table from another process as a source of rows, and the new columns for it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cli.submitting.command_folder import sha256_of
from features.pipelines.rows.arrow_values import row_values
from features.pipelines.rows.lines.table_shape import Shape
from features.pipelines.rows.outputs.tables import arrow_fields
from features.pipelines.rows.sources.files import Format
from features.pipelines.rows.sources.source import Row, Source
from tokenmill.carried_rows import read_rows, write_rows
from tokenmill.errors import InputError
from tokenmill.packages import needed
from tokenmill.row_json import as_json, dumps
from tokenmill.tables import COLUMNS, read_columns, write_columns

_DESCRIPTION = "the table"
_BATCH_ROWS = 512


def source_of(path: Path, form: str) -> tuple[Source, Format]:
    """Return the table of a file, and the matching output format: Parquet if columns have types."""
    if form == COLUMNS:
        return _source_of_columns(read_columns(path)), Format.PARQUET
    source = Source(
        description=_DESCRIPTION,
        columns=None,
        schema=None,
        read=lambda: _numbered(read_rows(path)),
        identity=lambda: sha256_of(path),
    )
    return source, Format.JSONL


def write_added(path: Path, form: str, shape: Shape, rows: Iterator[Mapping[str, Any]]) -> None:
    """Write the new columns of rows."""
    added = [{name: row[name] for name in shape.typed} for row in rows]
    if form == COLUMNS:
        write_columns(path, _table_of(added, shape))
    else:
        write_rows(path, added)


def _table_of(added: Sequence[Mapping[str, Any]], shape: Shape) -> Any:
    arrow = needed("pyarrow", by="a table with types")
    return arrow.Table.from_pylist(list(added), schema=arrow.schema(arrow_fields(shape.typed)))


def _source_of_columns(table: Any) -> Source:
    def rows() -> Iterator[dict[str, Any]]:
        for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
            yield from row_values(batch)

    return Source(
        description=_DESCRIPTION,
        columns=list(table.column_names),
        schema=table.schema,
        read=lambda: _numbered(rows()),
        identity=lambda: _digest(rows()),
    )


def _numbered(rows: Iterator[Mapping[str, Any]]) -> Iterator[Row]:
    return (Row(_DESCRIPTION, number, values) for number, values in enumerate(rows, start=1))


def _digest(rows: Iterator[Mapping[str, Any]]) -> str:
    digest = hashlib.sha256()
    for number, row in enumerate(rows, start=1):
        try:
            digest.update(dumps(row, default=_known))
        except TypeError as error:
            raise InputError(f"row {number} of the table cannot be read: {error}") from None
    return digest.hexdigest()


def _known(value: Any) -> Any:
    try:
        return as_json(value)
    except TypeError:
        return repr(value)
