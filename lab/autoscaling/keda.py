"""What KEDA and a pod autoscaler do with the answers of a postgresql trigger.

As in KEDA 2.17: with no workers, a value above the activation threshold starts one; with some, the autoscaler sets
value ÷ target, rounded up; none are left once the value was not above the threshold for the cooldown. A failing query
changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Trigger:
    """A scaled object with one postgresql trigger."""

    max_replicas: int
    min_replicas: int = 0
    target: float = 1.0
    activation: float = 0.0
    cooldown_seconds: float
    replicas: int = 0
    _active_at: float = -math.inf

    def answered(self, value: float | None, *, now: float) -> int:
        """Return the number of replicas after an answer; None: the query failed."""
        if value is None:
            return self.replicas
        if value > self.activation:
            self._active_at = now
            wanted = max(1, math.ceil(value / self.target))
        elif now - self._active_at >= self.cooldown_seconds:
            wanted = 0
        else:
            wanted = min(1, self.replicas)  # an autoscaler keeps one
        self.replicas = min(max(wanted, self.min_replicas), self.max_replicas)
        return self.replicas
