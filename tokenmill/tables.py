"""The kinds of tables that Python has, as sources of rows, and the same kind again with more columns.

Imports pandas and polars only where a table is theirs: then they are there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from features.pipelines.rows.arrow_values import row_values
from features.pipelines.rows.lines.table_shape import Shape
from features.pipelines.rows.outputs.tables import arrow_fields
from features.pipelines.rows.packages import needed
from features.pipelines.rows.row_json import as_json, dumps
from features.pipelines.rows.sources.files import Format
from features.pipelines.rows.sources.source import Row, Source
from jobs.errors import InputError

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
    if package == "pyarrow" and hasattr(given, "append_column") and hasattr(given, "to_batches"):
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
        if not isinstance(row, Mapping):
            raise InputError(f"row {number} is a {type(row).__name__}. Give each row as a dict of its columns.")
        if names := [name for name in row if not isinstance(name, str)]:
            raise InputError(f"row {number} has the key {names[0]!r}. Name every column by a text, such as with str().")

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
    if names := [name for name in given.columns if not isinstance(name, str)]:
        raise InputError(
            f"the DataFrame has a column named {names[0]!r}, which is no text. Rename it, such as with "
            "`frame.rename(columns=str)`."
        )

    def extended(shape: Shape, added: Rows) -> Any:
        pandas = needed("pandas", by="a DataFrame")
        new = _new_columns(shape, added).to_pandas()
        new.index = given.index
        return pandas.concat([given, new], axis=1)

    arrow = needed("pyarrow", by="a DataFrame")

    def column(name: str) -> Any:
        if str(given[name].dtype).startswith("period"):  # which Arrow has as numbers
            raise TypeError("periods, which `.astype(str)` makes texts")
        return arrow.Table.from_pandas(given[[name]], preserve_index=False).column(0)

    table = _arrow_table_of(list(given.columns), column)
    return PythonTable(source=_arrow_source(table), form=Format.PARQUET, extended=extended)


def _polars_frame(given: Any) -> PythonTable:
    def extended(shape: Shape, added: Rows) -> Any:
        polars = needed("polars", by="a DataFrame")
        return given.hstack(polars.from_arrow(_new_columns(shape, added)).get_columns())

    needed("pyarrow", by="a DataFrame")

    def column(name: str) -> Any:
        if str(given.schema[name]) == "Object":  # of which Arrow gets the addresses
            raise TypeError("objects of Python")
        return given.select([name]).to_arrow().column(0)

    table = _arrow_table_of(list(given.columns), column)
    return PythonTable(source=_arrow_source(table), form=Format.PARQUET, extended=extended)


def _arrow_table_of(names: Sequence[str], column: Callable[[str], Any]) -> Any:
    """Put a DataFrame's columns together. Raises InputError that names one that Arrow has no type for."""
    arrow = needed("pyarrow", by="a DataFrame")
    _require_once(names)
    found = {}
    for name in names:
        try:
            found[name] = column(name)
        except (arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
            said = error.args[0] if isinstance(error, arrow.ArrowException) else error
            reason = str(said).splitlines()[0].rstrip(".")
            raise InputError(
                f"the column {name!r} of the DataFrame holds what a column of one type cannot: {reason}. Make its "
                "values alike, or leave it out."
            ) from None
    return arrow.table(found)


def _require_once(names: Sequence[str]) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"the table has the column {twice[0]!r} twice. Rename one.")


def _arrow_source(table: Any) -> Source:
    names = list(table.column_names)
    _require_once(names)

    def rows() -> Iterator[dict[str, Any]]:
        for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
            yield from row_values(batch)

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
    for row in rows:
        try:
            digest.update(dumps(dict(row), default=_known))
        except TypeError:  # as of half a surrogate pair: the prompt says so, if it takes it
            digest.update(repr(row).encode(errors="backslashreplace"))
    return digest.hexdigest()


def _known(value: Any) -> Any:
    try:
        return as_json(value)
    except TypeError:
        return repr(value)
