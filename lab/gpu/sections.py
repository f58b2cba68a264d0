"""Run measurements one after the other within a time budget; a failed or skipped one does not stop the others.

A section is a name, an estimate and a function that returns rows.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure, and its ideal in the same unit; higher is better."""

    what: str
    measured: float
    unit: str
    ideal: float | None = None
    settings: str = ""
    note: str = ""

    @property
    def share(self) -> float | None:
        """Return the figure as a share of the ideal."""
        return None if self.ideal is None else self.measured / self.ideal


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A measurement."""

    name: str
    estimate_seconds: float
    """Maximum duration, including loading and compiling."""
    measure: Callable[[], list[Row]]


class Status(StrEnum):
    """How a section ended."""

    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A section's rows, or why it has none."""

    name: str
    status: Status
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)
    reason: str = ""
    """One line."""
    trace: str = ""
    """Traceback of the error."""


def run_sections(
    sections: Sequence[Section],
    *,
    time_budget_seconds: float | None,
    report: Callable[[Outcome], None],
    release: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Outcome]:
    """Run sections in order and return their outcomes; `report` gets each outcome at once, `release` frees memory.

    A section is skipped if less time is left than its estimate; later, shorter ones still run.
    """
    began = clock()
    outcomes = []
    for section in sections:
        left = None if time_budget_seconds is None else time_budget_seconds - (clock() - began)
        if left is not None and left < section.estimate_seconds:
            reason = f"{left:.0f} s of the time budget are left, and it may take {section.estimate_seconds:.0f} s"
            outcome = Outcome(name=section.name, status=Status.SKIPPED, reason=reason)
        else:
            outcome = _run(section, clock)
            release()
        report(outcome)
        outcomes.append(outcome)
    return outcomes


def _run(section: Section, clock: Callable[[], float]) -> Outcome:
    began = clock()
    try:
        rows = section.measure()
    except Exception as error:  # noqa: BLE001  whatever fails in one section, the others must still be measured
        return Outcome(
            name=section.name,
            status=Status.FAILED,
            seconds=clock() - began,
            reason=" ".join(f"{type(error).__name__}: {error}".split())[:300],
            trace="".join(traceback.format_exception(error)),
        )
    return Outcome(name=section.name, status=Status.DONE, seconds=clock() - began, rows=rows)
