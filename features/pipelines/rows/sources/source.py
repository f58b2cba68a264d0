"""The interface of a source of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Row(NamedTuple):
    """A row; a named tuple because a table has millions of them."""

    file: str
    number: int
    """From 1, in its file: a line of JSONL, a record below the header of CSV, a row of Parquet."""
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Rows that can be read repeatedly, with the same result as long as `identity` is the same."""

    description: str
    columns: Sequence[str] | None
    """None if each row has its own names, as in JSONL."""
    schema: Any
    """A pyarrow.Schema if the columns have types, otherwise None."""
    read: Callable[[], Iterator[Row]]
    """Raises InputError with the file and the row that cannot be read."""
    identity: Callable[[], str]
    """A digest of the content, or of a store's metadata of it."""
    notes: Sequence[str] = ()
    """How files are read that are not as their format usually is."""
