"""The kinds of tables that Python has, as sources of rows, and the same kind again with more columns.

Imports pandas and polars only where a table is theirs: then they are there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from jobs.errors import InputError
from pipelines.lines.table_shape import Shape
from pipelines.outputs.tables import arrow_fields
from pipelines.packages import needed
from pipelines.sources.files import Format
from pipelines.sources.source import Row, Source

_DESCRIPTION = "the table"
_BATCH_ROWS = 512

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonTable:
    """A table that was given."""

    source: Source
    form: Format
    """Which output its kind is like: Parquet where columns have types."""
    extended: Callable[[Shape, Rows], Any]
    """Make a table of its kind with the new columns, of which there are values for each row."""


def table_of(given: Any) -> PythonTable:
    """Return what was given as a table. Raises InputError for what is none, or has no rows."""
    package = type(given).__module__.partition(".")[0]
    if package == "pyarrow" and hasattr(given, "to_batches"):
        return _arrow_table(given)
    if package == "pandas" and hasattr(given, "columns"):
        return _pandas_frame(given)
    if package == "polars" and hasattr(given, "to_arrow") and hasattr(given, "hstack"):
        return _polars_frame(given)
    if isinstance(given, list):
        return _list_of_dicts(given)
    raise InputError(
        f"rows is a {type(given).__name__}. Give a list of dicts, a pyarrow.Table, or a pandas or polars DataFrame; "
        "for files there is the command `tokenmill map`."
    )


def _list_of_dicts(given: list[Any]) -> PythonTable:
    for number, row in enumerate(given, start=1):
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise InputError(f"row {number} is a {type(row).__name__}, and no dict whose keys are names.")

    def extended(_shape: Shape, added: Rows) -> list[dict[str, Any]]:
        return [{**row, **more} for row, more in zip(given, added, strict=True)]

    source = Source(
        description=_DESCRIPTION,
        columns=None,
        schema=None,
        read=lambda: _numbered(iter(given)),
        identity=lambda: _digest(iter(given)),
    )
    return PythonTable(source=source, form=Format.JSONL, extended=extended)


def _arrow_table(given: Any) -> PythonTable:
    def extended(shape: Shape, added: Rows) -> Any:
        table = given
        for column in (new := _new_columns(shape, added)).column_names:
            table = table.append_column(new.schema.field(column), new.column(column))
        return table

    return PythonTable(source=_arrow_source(given), form=Format.PARQUET, extended=extended)


def _pandas_frame(given: Any) -> PythonTable:
    if not all(isinstance(name, str) for name in given.columns):
        raise InputError("the columns of the DataFrame are not all named by texts. Rename them, such as with str().")

    def extended(shape: Shape, added: Rows) -> Any:
        pandas = needed("pandas", by="a DataFrame")
        new = _new_columns(shape, added).to_pandas()
        new.index = given.index
        return pandas.concat([given, new], axis=1)

    arrow = needed("pyarrow", by="a DataFrame")
    table = arrow.Table.from_pandas(given, preserve_index=False).replace_schema_metadata(None)
    return PythonTable(source=_arrow_source(table), form=Format.PARQUET, extended=extended)


def _polars_frame(given: Any) -> PythonTable:
    def extended(shape: Shape, added: Rows) -> Any:
        polars = needed("polars", by="a DataFrame")
        return given.hstack(polars.from_arrow(_new_columns(shape, added)).get_columns())

    needed("pyarrow", by="a DataFrame")
    return PythonTable(source=_arrow_source(given.to_arrow()), form=Format.PARQUET, extended=extended)


def _arrow_source(table: Any) -> Source:
    names = list(table.column_names)
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"the table has the column {twice[0]!r} twice. Rename one.")

    def rows() -> Iterator[dict[str, Any]]:
        for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
            yield from batch.to_pylist()

    return Source(
        description=_DESCRIPTION,
        columns=names,
        schema=table.schema,
        read=lambda: _numbered(rows()),
        identity=lambda: _digest(rows()),
    )


def _new_columns(shape: Shape, added: Rows) -> Any:
    arrow = needed("pyarrow", by="a table with types")
    return arrow.Table.from_pylist(list(added), schema=arrow.schema(arrow_fields(shape.typed)))


def _numbered(rows: Iterator[Mapping[str, Any]]) -> Iterator[Row]:
    return (Row(_DESCRIPTION, number, dict(values)) for number, values in enumerate(rows, start=1))


def _digest(rows: Iterator[Mapping[str, Any]]) -> str:
    digest = hashlib.sha256()
    dump = partial(orjson.dumps, default=repr, option=orjson.OPT_NON_STR_KEYS)
    for row in rows:
        digest.update(dump(dict(row)))
    return digest.hexdigest()
