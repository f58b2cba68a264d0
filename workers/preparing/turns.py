"""Which tenant's work a thread of the readers does next: the one that has least under way.

Knows neither readers nor what the work is.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Generic, TypeVar

from protocol.turns import Place, TurnQueue

Work = TypeVar("Work")


class Turns(Generic[Work]):
    """Work that waits, and how much of each tenant is under way. Safe to use from several threads."""

    def __init__(self, num_threads: int) -> None:
        """`num_threads` take whatever waits; spare ones beside them are for newcomers alone."""
        self._num_threads = num_threads
        self._changed = threading.Condition()
        self._waiting: TurnQueue[Work] = TurnQueue()
        self._under_way: Counter[str] = Counter()
        self._is_closed = False

    @property
    def num_under_way(self) -> int:
        """Return how much work has begun and has not ended."""
        with self._changed:
            return self._under_way.total()

    @property
    def num_waiting(self) -> int:
        """Return how much work has not begun."""
        with self._changed:
            return len(self._waiting)

    @property
    def is_closed(self) -> bool:
        """Tell whether no more work is to begin."""
        return self._is_closed

    def put(self, tenant_id: str, work: Work) -> None:
        """Have work done in its tenant's turn; a tenant's own begins in the order in which it came."""
        with self._changed:
            self._waiting.put(work, tenant=tenant_id)
            self._changed.notify_all()

    def take(self, *, is_spare: bool, timeout_seconds: float) -> tuple[str, Work] | None:
        """Wait for work, and return it with its tenant: `done` ends it. None where none came, or all is closed.

        Where the thread `is_spare`, only a tenant's of whom nothing is under way, and only while all others are at
        work: it need not wait for the end of anybody's slowest document.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._next(is_spare=is_spare), timeout_seconds)
            place = self._next(is_spare=is_spare)
            if place is None or self._is_closed:
                return None
            self._under_way[place.tenant] += 1
            self._changed.notify_all()  # this may have been the last thread that was free: the spare one's time
            return place.tenant, self._waiting.take(place)

    def done(self, tenant_id: str) -> None:
        """Note the end of work that was taken."""
        with self._changed:
            self._under_way[tenant_id] -= 1
            self._under_way += Counter()  # forgets who has nothing under way
            self._changed.notify_all()

    def close(self) -> None:
        """Let no more work begin, and whoever waits for some go."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _next(self, *, is_spare: bool) -> Place[Work] | None:
        """Return what begins next: of those with the least under way, whose turn it is."""
        if is_spare and self._under_way.total() < self._num_threads:
            return None
        place = min(self._waiting.firsts(), key=lambda one: self._under_way[one.tenant], default=None)
        if place is None or (is_spare and self._under_way[place.tenant]):
            return None
        return place
