"""Comparison of several outcomes of one day: as tables, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lab.days.replay import Outcome, Outcomes, groups

QUANTILES = (0.5, 0.95)


def tables(runs: Mapping[str, Outcomes]) -> str:
    """Return the tables, in Markdown; a pair is p50 / p95."""
    first = next(iter(runs.values()))
    head = ["", "batches", *runs]
    parts = [
        [["batches of", *head[1:]], *_rows(first, runs, _pair("first_answer"))],
        [["batches of", *head[1:]], *_rows(first, runs, _pair("end"))],
        [["batches of", *head[1:]], *_rows(first, runs, _num_late)],
        [
            ["the day", *runs],
            ["makespan, s", *(f"{run.makespan:,.1f}" for run in runs.values())],
            ["batches never ended", *(f"{_num_unended(run.batches):,}" for run in runs.values())],
            ["workers busy", *(f"{run.busy:.0%}" for run in runs.values())],
        ],
    ]
    titles = ("Seconds to the first answer", "Seconds to the last answer", "Deadlines missed", "All together")
    return "\n".join(f"{title}\n\n{_table(part)}" for title, part in zip(titles, parts, strict=True))


def as_json(runs: Mapping[str, Outcomes]) -> dict[str, Any]:
    """Return the same figures for programs."""
    return {
        name: {
            "makespan_seconds": run.makespan,
            "busy": run.busy,
            "groups": {
                group: _figures([run.batches[place] for place in own]) for group, own in groups(run.batches).items()
            },
        }
        for name, run in runs.items()
    }


def _figures(batches: Sequence[Outcome]) -> dict[str, Any]:
    figures: dict[str, Any] = {"batches": len(batches), "late": sum(batch.is_late for batch in batches)}
    figures["never_ended"] = _num_unended(batches)
    for what in ("first_answer", "end"):
        for share in QUANTILES:
            seconds = _quantile(batches, what, share)
            figures[f"{what}_p{share * 100:.0f}_seconds"] = seconds if seconds < math.inf else None
    return figures


def _rows(first: Outcomes, runs: Mapping[str, Outcomes], cell: Any) -> list[list[str]]:
    return [
        [group, f"{len(own):,}", *(cell([run.batches[place] for place in own]) for run in runs.values())]
        for group, own in groups(first.batches).items()
    ]


def _pair(what: str) -> Any:
    return lambda batches: " / ".join(_seconds(_quantile(batches, what, share)) for share in QUANTILES)


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f}" if seconds < math.inf else "never"


def _num_late(batches: Sequence[Outcome]) -> str:
    return f"{sum(batch.is_late for batch in batches):,}"


def _num_unended(batches: Sequence[Outcome]) -> int:
    return sum(batch.end == math.inf for batch in batches)


def _quantile(batches: Sequence[Outcome], what: str, share: float) -> float:
    """Return a quantile, interpolated between neighbours; infinite next to a batch that never ended."""
    values = sorted(getattr(batch, what) for batch in batches)
    beyond, below = math.modf(share * (len(values) - 1))
    low = values[int(below)]
    return float(low + (values[int(below) + 1] - low) * beyond if beyond and low < math.inf else low)


def _table(rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    head, *others = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    lines = [head, ["-" * width for width in widths], *others]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
