"""Tables laid out for a terminal: columns as wide as there is room, nothing truncated."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.cells import cell_len
from rich.table import Table


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Collection[str] = (),
    total: Sequence[object] | None = None,
    room: int | None = None,
) -> Table:
    """Return `header`, `rows` and `total` laid out for a terminal of `room` columns, as `print_table` shows them."""
    texts = [[str(cell) for cell in row] for row in rows]
    laid_out = Table(box=None, pad_edge=False, collapse_padding=True)
    first, *others = header
    # The first column is an id to paste into the next command, so the others give way.
    laid_out.add_column(first, no_wrap=True, min_width=max(map(len, (first, *(row[0] for row in texts)))))
    everything = [header, *texts, *([] if total is None else [list(map(str, total))])]
    _, *widths = [None] * len(header) if room is None else _widths(everything, room=room)
    for name, width in zip(others, widths, strict=True):
        laid_out.add_column(name, overflow="fold", justify="right" if name in numbers else "left", width=width)
    for number, row in enumerate(texts, start=1):
        laid_out.add_row(*row, end_section=number == len(texts))
    if total is not None:
        laid_out.add_row(*map(str, total))
    return laid_out


def _widths(rows: Sequence[Sequence[str]], *, room: int) -> Sequence[int | None]:
    """Return widths of columns that fit into `room` without breaking words; all None if that is impossible.

    The widest column with spaces shrinks first.
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(map(cell_len, column)) for column in columns]
    words = [max(cell_len(word) for cell in column for word in cell.split() or [""]) for column in columns]
    words[0] = widths[0]  # the id
    while sum(widths) + len(widths) - 1 > room:
        giving = [(width, place) for place, width in enumerate(widths) if width > words[place]]
        if not giving:
            return [None] * len(widths)
        widths[max(giving)[1]] -= 1
    return widths
