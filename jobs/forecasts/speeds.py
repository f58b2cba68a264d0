"""Speed of each worker: workers of one model may have different engines and machines, and come and go.

Pure: workers in, speeds out; no SQL, no clock. A model's rate is per average worker; what its workers can do together
counts each with its own speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.forecasts.rates import Look, Rate, aged, measured


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCount:
    """A live worker at a measurement."""

    id: str
    num_tokens: int
    """Computed since it started, as far as lines have ended."""
    running_lines: int
    before: Mapping[str, Any] | None
    """What the last measurement left; None for a new worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is stored about a worker until the next measurement."""

    tokens_per_second: float | None
    state: Mapping[str, Any]


_KEPT = ("tokens_per_second", "evidence_seconds", "recent_seconds", "recent_tokens", "is_saturated")


def measure(worker: WorkerCount, *, now: float, is_saturated: bool) -> Measured:
    """Measure one worker; `is_saturated`: chunks of its model waited, so that it could not have done more."""
    before = worker.before or {}
    rate = Rate(**{name: before[name] for name in _KEPT}) if worker.before else Rate()
    seconds = now - before["at"] if worker.before else 0.0
    look = Look(
        seconds=max(0.0, seconds),
        tokens=float(worker.num_tokens - before.get("num_tokens", 0)) if seconds else 0.0,
        num_workers=1,
        is_saturated=is_saturated and worker.running_lines > 0,
        used_tokens=0.0,
        estimated_tokens=0.0,
        num_lines=0,
        running_lines=worker.running_lines,
    )
    after = measured(aged(rate, look.seconds), look)
    kept = {name: getattr(after, name) for name in _KEPT}
    return Measured(
        tokens_per_second=after.tokens_per_second,
        state=kept | {"at": now, "num_tokens": worker.num_tokens},
    )


def as_workers(speeds: Sequence[float | None], *, average: float | None) -> float:
    """Return how many average workers these are worth; one that was not measured counts as average."""
    if not average:
        return float(len(speeds))
    return sum((average if speed is None else speed) / average for speed in speeds)
