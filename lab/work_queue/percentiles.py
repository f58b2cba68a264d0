"""Percentiles of measured values."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile: the smallest value at or above `share` of all; needs at least one."""
    return sorted_values[max(math.ceil(share * len(sorted_values)) - 1, 0)]
