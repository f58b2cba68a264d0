"""Groups rows by their values in some columns, in order of first occurrence.

Rows are spooled to a temporary file: memory holds an offset for each row, and one group.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from jobs.errors import InputError, ServiceError, TooLargeError
from tokenmill.row_json import dumps, loads

ROWS_COLUMN = "rows"
COUNT_COLUMN = "num_rows"
GROUP_COLUMNS = (ROWS_COLUMN, COUNT_COLUMN)
"""A group's names beside its grouping columns."""
MAX_GROUP_BYTES = 16 << 20
"""Size as JSON, the same as for the row of a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows with equal values in the grouping columns."""

    values: Mapping[str, Any]
    """The shared values, by column."""
    num_rows: int
    rows: list[dict[str, Any]] | None
    """In the order of the source; None if they have more than MAX_GROUP_BYTES together."""


def grouped(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, max_bytes: int) -> Iterator[Group]:
    """Yield the groups of rows; a missing column counts as null.

    Raise InputError if no row has a column, TooLargeError if all rows have more than `max_bytes` as JSON, ServiceError
    if the disk is full.
    """
    with _room(), tempfile.TemporaryFile() as spool:
        file = cast(BinaryIO, spool)
        for key, places in _spooled(rows, columns, file, max_bytes=max_bytes).items():
            values = dict(zip(columns, loads(key), strict=True))
            is_small = sum(places[1::2]) <= MAX_GROUP_BYTES
            yield Group(values=values, num_rows=len(places) // 2, rows=_read(file, places) if is_small else None)


@contextmanager
def _room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise ServiceError(f"the rows cannot be grouped in {tempfile.gettempdir()}: {reason}") from None


def _spooled(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str], file: BinaryIO, *, max_bytes: int
) -> dict[bytes, array[int]]:
    """Write rows one after another; return, for each group, the offset and length of each of its rows, alternating."""
    places: dict[bytes, array[int]] = {}
    seen: dict[str, None] = {}
    size = 0
    for row in rows:
        seen |= dict.fromkeys(row)
        line = dumps(row)
        key = dumps([row.get(column) for column in columns], sorts_keys=True)
        places.setdefault(key, array("Q")).extend((size, len(line)))
        size += file.write(line)
        if size > max_bytes:
            raise TooLargeError(f"The rows to be grouped have more than {max_bytes:,} bytes. Take fewer files.")
    _require_columns(columns, list(seen))
    return places


def _require_columns(columns: Sequence[str], seen: Sequence[str]) -> None:
    missing = [column for column in columns if seen and column not in seen]
    if missing:
        raise InputError(f"no row has the column {missing[0]!r} of group_by; there are: {', '.join(seen)}")


def _read(file: BinaryIO, places: array[int]) -> list[dict[str, Any]]:
    rows = []
    for start, size in zip(places[0::2], places[1::2], strict=True):
        file.seek(start)
        rows.append(loads(file.read(size)))
    return rows
