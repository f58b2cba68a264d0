"""Tables in a terminal, tab-separated lines in a pipe."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
import time
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime

_UNSEEN = ("Cc", "Cf", "Zl", "Zp")
"""Unicode categories: controls, formats such as direction marks, line and paragraph separators."""


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Collection[str] = (),
    total: Sequence[object] | None = None,
    below: str | None = None,
    as_json: bool = False,
) -> None:
    """Print `header` and `rows`, laid out in a terminal; nothing is truncated. Datetimes are in UTC, to the second.

    With `as_json` print a list of objects, whose keys are the header's words joined by `_`.

    A terminal shows the columns in `numbers` right-aligned with thousands separators, and `total`, the sum of all rows,
    below a line; programs add up themselves. The column `below` holds sentences: a terminal prints them under the
    table, each with the first cell of its row.
    """
    if as_json:
        print(json.dumps(objects_of(header, rows), indent=2))
        return
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


def objects_of(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[dict[str, object]]:
    """Return rows as objects of JSON's types, in the order of the columns."""
    keys = ["_".join(re.findall(r"\w+", name)) for name in header]
    assert len(set(keys) - {""}) == len(header), header
    return [dict(zip(keys, map(_plain, row), strict=True)) for row in rows]


def _plain(cell: object) -> object:
    if cell is None or isinstance(cell, bool | int | float | str):
        return cell
    return _as_utc(cell) if isinstance(cell, datetime) else str(cell)


def _shown(cell: object, is_number: bool) -> str:
    return f"{cell:,}" if is_number and isinstance(cell, int) else _text(cell)


def _text(cell: object) -> str:
    if isinstance(cell, datetime):
        return _as_utc(cell)
    return "" if cell is None else escaped(str(cell))


def escaped(text: str) -> str:
    """Escape control and invisible characters as Python does: names come from other users."""
    if text.isprintable():
        return text
    return "".join(repr(sign)[1:-1] if unicodedata.category(sign) in _UNSEEN else sign for sign in text)


def print_fields(fields: Mapping[str, object]) -> None:
    """Print one `name  value` per line; a terminal wraps long values under their beginning."""
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
    """Return the time since then, such as `40 s`, `3 min`, `5 h` or `12 d`."""
    return _span(int(time.time()) - unix_seconds)


def time_left(earliest: int, latest: int) -> str:
    """Return the time until then, such as `40 s to 2 min`, or one value if both are the same."""
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
