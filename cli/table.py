"""Tables for people in a terminal, tab-separated lines for programs in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Collection[str] = (),
    total: Sequence[object] | None = None,
) -> None:
    """Print `header` and `rows`, laid out where a terminal reads them; nothing is ever cut short.

    A terminal shows the columns named in `numbers` flush right, and below a line `total`, the sum of all rows; programs
    add up by themselves.
    """
    texts = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for line in (header, *texts):
            print("\t".join(line))
        return
    from rich.console import Console

    Console().print(table(header, texts, numbers=numbers, total=total), markup=False, crop=False)


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Collection[str] = (),
    total: Sequence[object] | None = None,
) -> Table:
    """Return `header`, `rows` and `total` laid out for a terminal, as `print_table` shows them."""
    from rich.table import Table

    texts = [[str(cell) for cell in row] for row in rows]
    laid_out = Table(box=None, pad_edge=False, collapse_padding=True)
    first, *others = header
    # The first column names the row and is pasted into the next command, so the others make room for it.
    laid_out.add_column(first, no_wrap=True, min_width=max(map(len, (first, *(row[0] for row in texts)))))
    for name in others:
        laid_out.add_column(name, overflow="fold", justify="right" if name in numbers else "left")
    for number, row in enumerate(texts, start=1):
        laid_out.add_row(*row, end_section=number == len(texts))
    if total is not None:
        laid_out.add_row(*map(str, total))
    return laid_out


def print_fields(fields: Mapping[str, object]) -> None:
    """Print one `name  value` a line."""
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        print(f"{name:<{width}}  {value}")


def age(unix_seconds: int) -> str:
    """Return how long ago it was, such as `40 s`, `3 min`, `5 h` or `12 d`."""
    seconds = max(0, int(time.time()) - unix_seconds)
    units = ((86_400, "d"), (3_600, "h"), (60, "min"))
    return next((f"{seconds // size} {unit}" for size, unit in units if seconds >= size), f"{seconds} s")


def when(unix_seconds: int) -> str:
    """Return the UTC time as ISO 8601, to the second."""
    return datetime.fromtimestamp(unix_seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
