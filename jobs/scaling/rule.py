"""The fewest workers that meet every deadline of a model.

Pure: no SQL, no clock. The function `tokenmill_wanted_workers` of the schema (migrations/steps/1001.sql) has the
same rule, for callers without Python; a test compares both on random cases.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobs.scaling.limits import Limits

HELD_SECONDS = 300.0
"""A smaller number is wanted only after this time, so that a short lull stops no worker."""
_MERGED = 1.005
"""Time left of a deadline ÷ that of an earlier one below which they are merged: the number needed is at most half a per
cent too large."""
_LEAST_SECONDS = 1.0
"""Time left of a deadline that is over, or nearly: the work is still to be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A deadline, and all work that the queue serves until the last line due by then has ended."""

    at: float
    """The deadline, in seconds of any one clock, like all times here."""
    tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A number of workers that was needed, larger than all needed since."""

    at: float
    num_workers: int


def decisive(dues: Iterable[Due], *, now: float) -> list[Due]:
    """Return the deadlines that can decide, earliest first: those with more work than all earlier ones.

    Close ones are merged into the earliest of them, so that 10,000 batches of a day leave some 1,500 at most.
    """
    found: list[Due] = []
    for due in sorted(dues, key=lambda due: (due.at, -due.tokens)):
        if found and due.tokens <= found[-1].tokens:
            continue
        if found and due.at - now < (found[-1].at - now) * _MERGED:
            found[-1] = Due(at=found[-1].at, tokens=due.tokens)
        else:
            found.append(due)
    return found


def needed_workers(dues: Sequence[Due], limits: Limits, *, rate: float | None, live: int, now: float) -> int:
    """Return how many workers are needed now: enough for each deadline, at most as many as allowed, one for any work.

    `rate` is the tokens a second of a worker, None where unknown; `live` workers run already.
    """
    least = max(limits.min_workers, 1 if dues else 0)
    if rate is None or not dues:
        return least
    needed = max(_needed_for(due, limits.startup_seconds, rate=rate, live=live, now=now) for due in dues)
    return max(least, min(math.ceil(needed), limits.most))


def with_peak(peaks: Iterable[Peak], needed: int, *, now: float) -> list[Peak]:
    """Return the peaks after another number was needed: falling numbers, the oldest first."""
    kept = [peak for peak in peaks if peak.num_workers > needed and peak.at > now - HELD_SECONDS]
    return [*kept, Peak(at=now, num_workers=needed)]


def wanted_workers(needed: int, peaks: Iterable[Peak], limits: Limits, *, now: float) -> int:
    """Return the number to have: the largest one that was needed within the last minutes."""
    held = (peak.num_workers for peak in peaks if peak.at > now - HELD_SECONDS)
    return max(needed, min(max(held, default=0), limits.most))


def _needed_for(due: Due, startup_seconds: float, *, rate: float, live: int, now: float) -> float:
    """Return how many workers do what is due by a deadline.

    It shall be done one start-up time earlier, or in half of a shorter time, so that a lost worker can be replaced.
    Workers that do not run yet begin after a start-up time. Where that leaves them less than another one, the deadline
    counts as "as soon as possible": all that run, and enough workers for one start-up time, since more would start
    longer than they work.
    """
    seconds = max(due.at - now - startup_seconds, (due.at - now) / 2, _LEAST_SECONDS)
    if due.tokens <= live * rate * seconds:
        return due.tokens / (rate * seconds)
    if seconds > startup_seconds:
        working_seconds = max(seconds - startup_seconds, startup_seconds)
        return live + (due.tokens - live * rate * seconds) / (rate * working_seconds)
    return max(float(live), due.tokens / (rate * startup_seconds))
