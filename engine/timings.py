"""How long requests wait and take, as histograms with fixed bounds that can be added up. Values only; no clock."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

BOUNDS_SECONDS = tuple(step * 10.0**power for power in range(-3, 4) for step in (1, 2, 5))
"""Upper bounds of all buckets but the last, which has none: 1 ms to 5,000 s."""


@dataclass(slots=True)
class Histogram:
    """Durations by bucket, `counts[i]` at or below `BOUNDS_SECONDS[i]` and above the bound before, and their sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_SECONDS) + 1))
    sum_seconds: float = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count a duration."""
        self.counts[bisect_left(BOUNDS_SECONDS, seconds)] += count
        self.sum_seconds += seconds * count


@dataclass(slots=True)
class Timings:
    """What sequences went through so far: until they started, to the first token, between tokens, to the end.

    A token that came together with others counts with its share of the time between the two steps.
    """

    queue_time: Histogram = field(default_factory=Histogram)
    time_to_first_token: Histogram = field(default_factory=Histogram)
    inter_token_latency: Histogram = field(default_factory=Histogram)
    e2e_latency: Histogram = field(default_factory=Histogram)
