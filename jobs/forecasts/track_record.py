"""How far earlier forecasts of a model's batches were off, and so between which moments the next ones end.

Pure: an error is the logarithm of the time that was left ÷ the time that was forecast. Knows no batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from jobs.states import Priority

_KEPT = 150
"""Errors of each kind, the newest."""
_PRIOR_ERRORS = 12
"""So many made-up ones stand for those that are missing; half as many of them go as real ones come."""
_HELD = 0.87
"""The part of the errors that an interval holds: a little more than the eight of ten that it is to hold, since errors
of the past are never quite those of the future."""


class Phase(StrEnum):
    """What most of the time is that a batch has left."""

    QUEUE = "queue"
    """Until its last chunk is taken up: many lines, whose lengths even out, and whatever comes meanwhile."""
    LINES = "lines"
    """Until its lines end, of which workers have all, with less than half of them done, or"""
    LAST = "last"
    """more: what is left is the longest."""


Kind = tuple[Phase, Priority | None]
"""Errors of one kind are alike. A class is named where it matters: what comes later delays each in its own way."""

_PRIOR: Mapping[Phase, tuple[float, float]] = {
    Phase.QUEUE: (-0.1, 0.5),
    Phase.LINES: (-0.7, 0.7),
    Phase.LAST: (-1.0, 1.0),
}
"""Between which errors most lie of a model with no record (`tokenmill bench replay eta`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """What to multiply a forecast by."""

    earliest: float
    expected: float
    latest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackRecord:
    """Errors of one model's forecasts, the newest last."""

    errors: Mapping[Kind, Sequence[float]] = field(default_factory=dict)

    def after(self, kind: Kind, *, forecast_seconds: float, actual_seconds: float) -> TrackRecord:
        """Return the record with one more end."""
        if forecast_seconds <= 0 or actual_seconds <= 0:
            return self
        own = [*self.errors.get(kind, ()), round(math.log(actual_seconds / forecast_seconds), 3)]
        return replace(self, errors={**self.errors, kind: own[-_KEPT:]})

    def factors(self, kind: Kind) -> Factors:
        """Return by which factors forecasts of this kind were off."""
        errors = sorted([*self.errors.get(kind, ()), *self._made_up(kind)])
        low, high = _shortest(errors)
        middle = errors[len(errors) // 2]
        return Factors(
            earliest=math.exp(min(low, middle)), expected=math.exp(middle), latest=math.exp(max(high, middle))
        )

    def _made_up(self, kind: Kind) -> Sequence[float]:
        """Return errors, evenly spaced, that stand for those that are missing."""
        count = max(0, _PRIOR_ERRORS - len(self.errors.get(kind, ())) // 2)
        low, high = _PRIOR[kind[0]]
        return [low + (high - low) * (number + 0.5) / count for number in range(count)]


def _shortest(ordered: Sequence[float]) -> tuple[float, float]:
    """Return the shortest interval that holds its part of the errors: few are very late, and none are so early."""
    count = min(len(ordered), math.ceil(_HELD * len(ordered)))
    return min(
        ((ordered[first], ordered[first + count - 1]) for first in range(len(ordered) - count + 1)),
        key=lambda bounds: math.exp(bounds[1]) - math.exp(bounds[0]),
    )
