"""Models that could not be loaded, or whose workers ended: left out, and tried again after ever longer pauses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

FIRST_PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 3600.0
"""Each try takes the worker from the other models for as long as a start takes."""
_MOST_DOUBLINGS = 20


@dataclass(slots=True, kw_only=True)
class _Failure:
    reason: str
    again_at: float
    num: int


@dataclass(slots=True)
class Failures:
    """By model."""

    monotonic: Callable[[], float]
    _by_model: dict[str, _Failure] = field(default_factory=dict, init=False)

    def add(self, model: str, reason: str) -> float:
        """Record that a model could not be served; return the seconds until it is tried again."""
        before = self._by_model.get(model)
        num = 0 if before is None else min(before.num + 1, _MOST_DOUBLINGS)
        pause = min(FIRST_PAUSE_SECONDS * float(2**num), LONGEST_PAUSE_SECONDS)
        self._by_model[model] = _Failure(reason=reason, again_at=self.monotonic() + pause, num=num)
        return pause

    def forget(self, model: str) -> None:
        """Record that a model has been served for a while."""
        self._by_model.pop(model, None)

    @property
    def reasons(self) -> Mapping[str, str]:
        """Return why models could not be served, until they are."""
        return {model: failure.reason for model, failure in self._by_model.items()}

    @property
    def paused(self) -> Collection[str]:
        """Return the models that are not tried now."""
        now = self.monotonic()
        return [model for model, failure in self._by_model.items() if now < failure.again_at]
