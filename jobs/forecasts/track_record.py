"""Errors of earlier forecasts of a model's batches, and the interval they give for the next ones.

Pure: an error is the logarithm of actual ÷ forecast time left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from jobs.states import Priority

_KEPT = 150
"""The newest errors of each kind that are kept."""
_PRIOR_ERRORS = 12
"""Number of assumed errors that stand in for missing ones; half as many of them are dropped as real ones come."""
_HELD = 0.87
"""Part of the errors that an interval covers: a little above the target of 80 %, since past errors are never quite
those of the future."""


class Phase(StrEnum):
    """What most of a batch's remaining time consists of."""

    QUEUE = "queue"
    """Until its last chunk is claimed: many lines, whose lengths even out, and whatever comes meanwhile."""
    LINES = "lines"
    """Until its lines end, all of them with workers, less than half of them done."""
    LAST = "last"
    """The same with at least half of them done: what is left is the longest."""


Kind = tuple[Phase, Priority | None]
"""Errors of one kind are similar. The class is part of a kind where it matters: later work delays each class
differently."""

_PRIOR: Mapping[Phase, tuple[float, float]] = {
    Phase.QUEUE: (-0.1, 0.5),
    Phase.LINES: (-0.7, 0.7),
    Phase.LAST: (-1.0, 1.0),
}
"""Interval of most errors for a model without a record (`tokenmill bench replay eta`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Factors by which a forecast is multiplied."""

    earliest: float
    expected: float
    latest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackRecord:
    """Errors of one model's forecasts, the newest last."""

    errors: Mapping[Kind, Sequence[float]] = field(default_factory=dict)

    def after(self, kind: Kind, *, forecast_seconds: float, actual_seconds: float) -> TrackRecord:
        """Return the record with one more end added."""
        if forecast_seconds <= 0 or actual_seconds <= 0:
            return self
        own = [*self.errors.get(kind, ()), round(math.log(actual_seconds / forecast_seconds), 3)]
        return replace(self, errors={**self.errors, kind: own[-_KEPT:]})

    def factors(self, kind: Kind) -> Factors:
        """Return the factors by which forecasts of this kind were off."""
        errors = sorted([*self.errors.get(kind, ()), *self._made_up(kind)])
        low, high = _shortest(errors)
        middle = errors[len(errors) // 2]
        return Factors(
            earliest=math.exp(min(low, middle)), expected=math.exp(middle), latest=math.exp(max(high, middle))
        )

    def _made_up(self, kind: Kind) -> Sequence[float]:
        """Return evenly spaced errors that stand in for missing ones."""
        count = max(0, _PRIOR_ERRORS - len(self.errors.get(kind, ())) // 2)
        low, high = _PRIOR[kind[0]]
        return [low + (high - low) * (number + 0.5) / count for number in range(count)]


def _shortest(ordered: Sequence[float]) -> tuple[float, float]:
    """Return the shortest interval with its part of the errors: a few are very late, and none are as early."""
    count = min(len(ordered), math.ceil(_HELD * len(ordered)))
    return min(
        ((ordered[first], ordered[first + count - 1]) for first in range(len(ordered) - count + 1)),
        key=lambda bounds: math.exp(bounds[1]) - math.exp(bounds[0]),
    )
