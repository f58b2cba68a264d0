"""Show the sections' outcomes: a table in plain text, and plain values for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lab.gpu.sections import Outcome, Row

_HEADER = ("section", "what", "measured", "ideal", "share")


def table(outcomes: Sequence[Outcome]) -> str:
    """Return one aligned line per figure, then each row's settings and notes, and the failed or skipped sections."""
    lines = [_HEADER, *(_cells(outcome.name, row) for outcome in outcomes for row in outcome.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADER))]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    shown.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*shown, "", *(line for outcome in outcomes for line in _remarks(outcome))])


def brief(outcome: Outcome) -> str:
    """Return a summary of a section, for printing when it ends."""
    figures = "; ".join(
        f"{row.what} {_number(row.measured)} {row.unit}" + ("" if row.share is None else f" ({row.share:.1%} of ideal)")
        for row in outcome.rows
    )
    return f"[{outcome.name}] {outcome.status} in {outcome.seconds:.0f} s: {figures or outcome.reason}"


def as_values(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return all outcomes, including shares, for JSON."""
    return [
        {**asdict(outcome), "rows": [{**asdict(row), "share": row.share} for row in outcome.rows]}
        for outcome in outcomes
    ]


def _cells(name: str, row: Row) -> tuple[str, ...]:
    ideal = "" if row.ideal is None else f"{_number(row.ideal)} {row.unit}"
    share = "" if row.share is None else f"{row.share:.1%}"
    return (name, row.what, f"{_number(row.measured)} {row.unit}", ideal, share)


def _remarks(outcome: Outcome) -> list[str]:
    if outcome.reason:
        return [f"{outcome.name}: {outcome.status}: {outcome.reason}"]
    texts = [(row.what, "; ".join(text for text in (row.settings, row.note) if text)) for row in outcome.rows]
    return [f"{outcome.name}, {what}: {text}" for what, text in texts if text]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
