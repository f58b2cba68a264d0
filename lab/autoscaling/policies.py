"""Policies that set the number of workers: the service's rule, a fixed fleet, and the length of the queue."""

from __future__ import annotations

import math

from jobs.forecasts.finish_times import forecast
from jobs.scaling.limits import Limits
from jobs.scaling.rule import HELD_SECONDS, Due, Peak, decisive, needed_workers, wanted_workers, with_peak
from lab.autoscaling.load import WORKER_TOKENS
from lab.autoscaling.week import STARTUP_SECONDS, Policy, Seen
from lab.simulation.simulated_batches import EPOCH

EXPECTED_RATE = 0.8 * WORKER_TOKENS
"""An operator's guess, a fifth too low."""


def by_deadlines(*, max_workers: int) -> Policy:
    """Return the rule of `tokenmill_wanted_workers`, asked as the database asks it."""
    limits = Limits(max_workers=max_workers, startup_seconds=STARTUP_SECONDS, expected_rate=EXPECTED_RATE)
    peaks: list[Peak] = []

    def decide(seen: Seen) -> int:
        deadlines = {load.batch_id: (load.expires_at - EPOCH).total_seconds() for load in seen.loads}
        all_of_them = [Due(at=deadlines[found.batch_id], tokens=found.tokens) for found in forecast(seen.loads)]
        dues = decisive(all_of_them, now=seen.now)
        rate = limits.expected_rate if seen.rate is None else seen.rate
        needed = needed_workers(dues, limits, rate=rate, live=seen.live, now=seen.now)
        peaks[:] = with_peak(peaks, needed, now=seen.now)
        return wanted_workers(needed, peaks, limits, now=seen.now)

    return decide


def by_queue_length(*, seconds: float, max_workers: int) -> Policy:
    """Return a policy that gives each worker so many seconds of waiting work, and stops none for five minutes."""
    peaks: list[Peak] = []

    def decide(seen: Seen) -> int:
        waiting = sum(load.ready_tokens for load in seen.loads)
        needed = min(math.ceil(waiting / (EXPECTED_RATE * seconds)), max_workers)
        peaks[:] = with_peak(peaks, needed, now=seen.now)
        return max(peak.num_workers for peak in peaks if peak.at > seen.now - HELD_SECONDS)

    return decide


def fixed(number: int) -> Policy:
    """Return a policy that never changes its number."""
    return lambda _: number
