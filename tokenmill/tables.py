"""Python's kinds of tables: transfer to a process of ours, and the same kind again with more columns.

Imports pandas and polars only for their own tables: then they are installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.carried_rows import read_rows, write_rows
from tokenmill.errors import InputError
from tokenmill.packages import needed

ROWS, COLUMNS = "rows", "columns"
"""Transfer formats: rows of any values (`tokenmill.carried_rows`), or typed columns (Arrow)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonTable:
    """A caller's table."""

    form: str
    write: Callable[[Path], None]
    """Writes its rows to a file. Raises InputError."""
    extended: Callable[[Path], Any]
    """Makes a table of its kind with the new columns, which a file has for each row."""


def table_of(rows: Any) -> PythonTable:
    """Return the argument as a table. Raises InputError for other types, and for a table without rows."""
    package = type(rows).__module__.partition(".")[0]
    if package == "pyarrow" and hasattr(rows, "append_column") and hasattr(rows, "to_batches"):
        return _arrow_table(rows)
    if package == "pandas" and hasattr(rows, "columns"):
        return _pandas_frame(rows)
    if package == "polars" and hasattr(rows, "to_arrow") and hasattr(rows, "hstack"):
        return _polars_frame(rows)
    if isinstance(rows, list):
        return _list_of_dicts(rows)
    raise InputError(
        f"rows is a {type(rows).__name__}. Give a list of dicts, a pyarrow.Table, or a pandas or polars DataFrame; "
        "for files there is the command `tokenmill map`."
    )


def _list_of_dicts(rows: list[Any]) -> PythonTable:
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise InputError(f"row {number} is a {type(row).__name__}. Give each row as a dict of its columns.")
        if names := [name for name in row if not isinstance(name, str)]:
            raise InputError(f"row {number} has the key {names[0]!r}. Name every column by a text, such as with str().")

    def extended(added: Path) -> list[dict[str, Any]]:
        return [{**row, **more} for row, more in zip(rows, read_rows(added), strict=True)]

    return PythonTable(form=ROWS, write=lambda path: write_rows(path, rows), extended=extended)


def _arrow_table(rows: Any) -> PythonTable:
    def extended(added: Path) -> Any:
        table, new = rows, read_columns(added)
        for column in new.column_names:
            table = table.append_column(new.schema.field(column), new.column(column))
        return table

    return _with_types(rows, extended)


def _pandas_frame(rows: Any) -> PythonTable:
    if names := [name for name in rows.columns if not isinstance(name, str)]:
        raise InputError(
            f"the DataFrame has a column named {names[0]!r}, which is no text. Rename it, such as with "
            "`frame.rename(columns=str)`."
        )

    def extended(added: Path) -> Any:
        pandas = needed("pandas", by="a DataFrame")
        new = read_columns(added).to_pandas()
        new.index = rows.index
        return pandas.concat([rows, new], axis=1)

    arrow = needed("pyarrow", by="a DataFrame")

    def column(name: str) -> Any:
        if str(rows[name].dtype).startswith("period"):  # which Arrow stores as numbers
            raise TypeError("periods, which `.astype(str)` makes texts")
        return arrow.Table.from_pandas(rows[[name]], preserve_index=False).column(0)

    return _with_types(_arrow_table_of(list(rows.columns), column), extended)


def _polars_frame(rows: Any) -> PythonTable:
    def extended(added: Path) -> Any:
        polars = needed("polars", by="a DataFrame")
        return rows.hstack(polars.from_arrow(read_columns(added)).get_columns())

    needed("pyarrow", by="a DataFrame")

    def column(name: str) -> Any:
        if str(rows.schema[name]) == "Object":  # of which Arrow gets only the addresses
            raise TypeError("objects of Python")
        return rows.select([name]).to_arrow().column(0)

    return _with_types(_arrow_table_of(list(rows.columns), column), extended)


def _arrow_table_of(names: Sequence[str], column: Callable[[str], Any]) -> Any:
    """Assemble a DataFrame's columns. Raises InputError naming one without an Arrow type."""
    arrow = needed("pyarrow", by="a DataFrame")
    _require_once(names)
    columns = {}
    for name in names:
        try:
            columns[name] = column(name)
        except (arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
            text = error.args[0] if isinstance(error, arrow.ArrowException) else error
            reason = str(text).splitlines()[0].rstrip(".")
            raise InputError(
                f"the column {name!r} of the DataFrame holds what a column of one type cannot: {reason}. Make its "
                "values alike, or leave it out."
            ) from None
    return arrow.table(columns)


def _with_types(table: Any, extended: Callable[[Path], Any]) -> PythonTable:
    _require_once(table.column_names)
    return PythonTable(form=COLUMNS, write=lambda path: write_columns(path, table), extended=extended)


def _require_once(names: Sequence[str]) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"the table has the column {twice[0]!r} twice. Rename one.")


def write_columns(path: Path, table: Any) -> None:
    """Write a pyarrow.Table, as a stream: an Arrow file cannot hold a changing dictionary."""
    ipc = needed("pyarrow.ipc", by="a table with types")
    with ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table)


def read_columns(path: Path) -> Any:
    """Return a pyarrow.Table whose values stay in the file."""
    arrow = needed("pyarrow", by="a table with types")
    with arrow.memory_map(str(path)) as content:
        return arrow.ipc.open_stream(content).read_all()
