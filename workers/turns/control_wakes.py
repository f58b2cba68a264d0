"""How many hints wake control workers: one that is awake takes up due batches until there are none."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_AT_ONCE = 8
"""Hints for batches that become due together: each may wake another control worker."""
A_SECOND = 2.0
"""Hints for a stream of batches: each costs 3 ms of processor time, 1 of the dispatcher."""


class ControlWakes:
    """The hints that may be sent by now."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._left = float(MOST_AT_ONCE)
        self._taken_at = monotonic()

    def take(self, num_due: int) -> int:
        """Return for how many of the batches that have become due to send a hint."""
        now = self._monotonic()
        self._left = min(MOST_AT_ONCE, self._left + A_SECOND * (now - self._taken_at))
        self._taken_at = now
        num_taken = min(num_due, int(self._left))
        self._left -= num_taken
        return num_taken
