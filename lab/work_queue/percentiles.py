"""Percentiles of what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of all are not above (nearest rank). There is one at least."""
    return sorted_values[max(math.ceil(share * len(sorted_values)) - 1, 0)]
