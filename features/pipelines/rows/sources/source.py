"""What a source of rows is, whatever it is read from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Row(NamedTuple):
    """A named tuple because a table has millions of them."""

    file: str
    number: int
    """From 1, in its file: a line of JSONL, a record below the header of CSV, a row of Parquet."""
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Rows that can be read more than once, the same each time while `identity` stays as it is."""

    description: str
    columns: Sequence[str] | None
    """None where each row has names of its own, as objects of JSONL have."""
    schema: Any
    """A pyarrow.Schema where the columns have types; None where they have none."""
    read: Callable[[], Iterator[Row]]
    """Raises InputError with the file and the row that cannot be read."""
    identity: Callable[[], str]
    """A digest of the content, or of what a store says of it."""
