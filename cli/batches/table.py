"""The table of batches: short enough for 80 columns in a terminal, every number by itself in a pipe.

Knows no server: batches are what the client returned.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from cli.table import age, print_table, when
from cli.watching.watch import cost_of, counts_of, stands


def print_batches(batches: Sequence[Any]) -> None:
    """Print one row a batch."""
    if sys.stdout.isatty():
        rows = [(b.id, stands(b), _progress(*counts_of(b)), age(b.created_at), cost_of(b)) for b in batches]
        print_table(("id", "status", "done", "age", "cost"), rows, numbers=("done", "cost"))
        return
    print_table(
        ("id", "status", "done", "failed", "total", "created", "cost"),
        [(b.id, b.status, *counts_of(b), when(b.created_at), cost_of(b)) for b in batches],
    )


def _progress(num_completed: int, num_failed: int, total: int) -> str:
    """Return such as `397/400, 3 failed`; it breaks at its spaces where a terminal is narrow."""
    return f"{num_completed}/{total}" + (f", {num_failed} failed" if num_failed else "")
