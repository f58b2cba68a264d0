"""The table of batches: at most 80 columns in a terminal, one number per column in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from cli.table import age, print_table, time_left, when
from cli.watching.watch import cost_of, counts_of, stands

_ENDS = ("eta", "eta_earliest", "eta_latest")


def print_batches(batches: Sequence[Any]) -> None:
    """Print one row per batch."""
    if sys.stdout.isatty():
        ends = [_ends(b) for b in batches]
        has_ends = any(ends)  # otherwise no such column: 80 characters are few
        rows = [
            (
                *(b.id, stands(b), _progress(*counts_of(b)), age(b.created_at)),
                *([end] if has_ends else []),
                *(cost_of(b), _name(b)),
            )
            for b, end in zip(batches, ends, strict=True)
        ]
        header = ("id", "status", "done", "age", *(["ends in"] if has_ends else []), "cost", "name")
        print_table(header, rows, numbers=("done", "cost"), below="name")
        return
    print_table(
        ("id", "status", "done", "failed", "total", "created", "cost", *_ENDS, "name"),
        [(b.id, b.status, *counts_of(b), when(b.created_at), cost_of(b), *_end_moments(b), _name(b)) for b in batches],
    )


def _name(batch: Any) -> str:
    return getattr(batch, "name", None) or ""  # other servers know no names


def _ends(batch: Any) -> str:
    """Return such as `3 min to 5 min`; empty where the server does not know, as other servers never do."""
    earliest, latest = (getattr(batch, name, None) for name in _ENDS[1:])
    return "" if earliest is None or latest is None else time_left(earliest, latest)


def _end_moments(batch: Any) -> list[str]:
    moments = [getattr(batch, name, None) for name in _ENDS]
    return ["" if moment is None else when(moment) for moment in moments]


def _progress(num_completed: int, num_failed: int, total: int) -> str:
    """Return such as `397/400, 3 failed`; a narrow terminal breaks it at its spaces."""
    return f"{num_completed}/{total}" + (f", {num_failed} failed" if num_failed else "")
