"""A histogram of durations in logarithmic bins, so that hundreds of millions take little memory.

Quantiles are within 0.5 % of the true ones.
"""

from __future__ import annotations

import math
from collections import Counter

_BASE = 1.01
_LOG_BASE = math.log(_BASE)


class LatencyHistogram:
    """Counts of durations in seconds, above zero."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._sum = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count a duration; `count` may be zero."""
        if count:
            self._counts[round(math.log(seconds) / _LOG_BASE)] += count
            self._sum += seconds * count

    @property
    def count(self) -> int:
        """Return the number of durations."""
        return sum(self._counts.values())

    @property
    def mean(self) -> float:
        """Return the mean duration, exactly; NaN without any."""
        return self._sum / self.count if self._counts else math.nan

    def quantile(self, share: float) -> float:
        """Return the duration that this share of them does not exceed; NaN without any."""
        left = share * self.count
        for index in sorted(self._counts):
            left -= self._counts[index]
            if left <= 0:
                return _BASE**index
        return math.nan
