"""Tables for people in a terminal, tab-separated lines for programs in a pipe."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime

_UNSEEN = ("Cc", "Cf", "Zl", "Zp")
"""Categories of signs: controls, formats such as marks that turn text, ends of lines and paragraphs."""


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Collection[str] = (),
    total: Sequence[object] | None = None,
    below: str | None = None,
) -> None:
    """Print `header` and `rows`, laid out where a terminal reads them; nothing is ever cut short.
    A datetime is shown in UTC, to the second.

    A terminal shows the columns named in `numbers` flush right, their whole numbers as `12,345`, and below a line
    `total`, the sum of all rows; programs add up by themselves. The column `below` holds sentences: a terminal shows
    them under the table, each with the first cell of its row.
    """
    if not sys.stdout.isatty():
        for row in (header, *rows):
            print("\t".join(_text(cell) for cell in row))
        return
    from rich.console import Console

    from cli.terminal_table import table

    texts = [[_shown(cell, name in numbers) for name, cell in zip(header, row, strict=True)] for row in rows]
    remarks = []
    if below is not None:
        place = list(header).index(below)
        remarks = [(row[0], row[place]) for row in texts if row[place]]
        header, *texts = ([*row[:place], *row[place + 1 :]] for row in (header, *texts))
    console = Console()
    laid_out = table(header, texts, numbers=numbers, total=total, room=console.width)
    console.print(laid_out, markup=False, crop=False)
    for name, remark in remarks:
        print(f"{name}: {remark}")


def _shown(cell: object, is_number: bool) -> str:
    return f"{cell:,}" if is_number and isinstance(cell, int) else _text(cell)


def _text(cell: object) -> str:
    if isinstance(cell, datetime):
        return _as_utc(cell)
    return "" if cell is None else escaped(str(cell))


def escaped(text: str) -> str:
    """Write what steers a terminal or cannot be seen as Python writes it: names are given by others."""
    if text.isprintable():
        return text
    return "".join(repr(sign)[1:-1] if unicodedata.category(sign) in _UNSEEN else sign for sign in text)


def print_fields(fields: Mapping[str, object]) -> None:
    """Print one `name  value` a line; where it is too long for a terminal, it goes on below its beginning."""
    width = max((len(name) for name in fields), default=0)
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for name, value in fields.items():
        line = f"{name:<{width}}  {escaped(str(value))}"
        if room is not None and len(line) > room:
            line = textwrap.fill(
                line, room, subsequent_indent=" " * (width + 2), break_long_words=False, break_on_hyphens=False
            )
        print(line)


def age(unix_seconds: int) -> str:
    """Return how long ago it was, such as `40 s`, `3 min`, `5 h` or `12 d`."""
    return _span(int(time.time()) - unix_seconds)


def time_left(earliest: int, latest: int) -> str:
    """Return when something is to come, such as `40 s to 2 min`, or one of them where both are the same."""
    now = int(time.time())
    spans = dict.fromkeys(_span(moment - now) for moment in (earliest, latest))
    return " to ".join(spans)


def _span(seconds: int) -> str:
    seconds = max(0, seconds)
    units = ((86_400, "d"), (3_600, "h"), (60, "min"))
    return next((f"{seconds // size} {unit}" for size, unit in units if seconds >= size), f"{seconds} s")


def when(unix_seconds: int) -> str:
    """Return the UTC time as ISO 8601, to the second."""
    return _as_utc(datetime.fromtimestamp(unix_seconds, tz=UTC))


def _as_utc(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
