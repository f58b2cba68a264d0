"""Print a comparison as a table, or return it as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lab.peers.comparison import Comparison, Row


def print_comparison(comparison: Comparison) -> None:
    """Print the table of one workload, its failures and the summary."""
    console = Console()
    table = Table(title=comparison.workload, title_justify="left", box=None, pad_edge=False)
    for name in ("engine", "precision"):
        table.add_column(name, no_wrap=True)
    for name in ("output\ntok/s", "ours ÷\ntheirs", "CPU s", "same\ntoken"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("each\nrun", "busy\nbeside"):  # one figure per repetition: they wrap where there is no room
        table.add_column(name, min_width=7)
    for row in comparison.rows:
        table.add_row(*_cells(row))
    console.print(table)
    for row in comparison.rows:
        if row.failure is not None:
            console.print(escape(f"{row.peer} failed: {row.failure}"), soft_wrap=True)
    console.print(escape(summary(comparison)), soft_wrap=True)


def summary(comparison: Comparison) -> str:
    """Return one line: the ratio to the best peer, and how steady the machine was."""
    if comparison.best_ratio is None:
        text = f"{comparison.workload}: nothing to compare with"
    else:
        text = f"{comparison.workload}: ours gives {comparison.best_ratio:.2f} × the best peer, {comparison.best_peer}"
    if comparison.drift is not None:
        text += f"; our last run had {comparison.drift:.2f} × the speed of our first"
    return text + "."


def as_json(
    comparisons: Sequence[Comparison], *, settings: dict[str, Any], tried: dict[str, Any], missing: Sequence[str]
) -> dict[str, Any]:
    """Return all results: `settings` are those that each engine reports, and `tried` those tested to choose them."""
    workloads = [asdict(comparison) for comparison in comparisons]
    return {"workloads": workloads, "settings": settings, "tried": tried, "missing": list(missing)}


def _cells(row: Row) -> list[str]:
    if row.failure is not None:
        return [f"{row.peer} {row.version}".rstrip(), row.dtype, "failed", "", "", "", "", ""]
    return [
        f"{row.peer} {row.version}",
        row.dtype,
        _figure(row.tokens_per_second, ".0f"),
        _figure(row.ratio, ".2f"),
        _figure(row.cpu_seconds, ".1f"),
        _figure(row.same_tokens, ".0%"),
        " ".join(f"{rate:.0f}" for rate in row.rates),
        " ".join(f"{cores:.1f}" for cores in row.other_cores),
    ]


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
