"""Decides whose work a reader thread does next: that of the tenant with the least work in progress."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Generic, TypeVar

from protocol.turns import Place, TurnQueue

Work = TypeVar("Work")


class Turns(Generic[Work]):
    """Waiting work, and the amount in progress by tenant. Safe to use from several threads."""

    def __init__(self, num_threads: int) -> None:
        """`num_threads` take any waiting work; spare ones are only for newcomers."""
        self._num_threads = num_threads
        self._changed = threading.Condition()
        self._waiting: TurnQueue[Work] = TurnQueue()
        self._under_way: Counter[str] = Counter()
        self._is_closed = False

    @property
    def num_under_way(self) -> int:
        """Return how much work is in progress."""
        with self._changed:
            return self._under_way.total()

    @property
    def num_waiting(self) -> int:
        """Return how much work has not been started."""
        with self._changed:
            return len(self._waiting)

    @property
    def is_closed(self) -> bool:
        """Tell whether no more work may start."""
        return self._is_closed

    def put(self, tenant_id: str, work: Work) -> None:
        """Queue work for its tenant's turn; a tenant's work starts in order of arrival."""
        with self._changed:
            self._waiting.put(work, tenant=tenant_id)
            self._changed.notify_all()

    def take(self, *, is_spare: bool, timeout_seconds: float) -> tuple[str, Work] | None:
        """Wait for work and return it with its tenant; call `done` when it ends. None on timeout or if closed.

        A spare thread takes only work of a tenant with nothing in progress, and only while all others are busy, so
        that such a tenant need not wait for another's slowest document.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._next(is_spare=is_spare), timeout_seconds)
            place = self._next(is_spare=is_spare)
            if place is None or self._is_closed:
                return None
            self._under_way[place.tenant] += 1
            self._changed.notify_all()  # this may have been the last free thread, so that the spare one may start
            return place.tenant, self._waiting.take(place)

    def done(self, tenant_id: str) -> None:
        """Record the end of work that was taken."""
        with self._changed:
            self._under_way[tenant_id] -= 1
            self._under_way += Counter()  # removes tenants with nothing in progress
            self._changed.notify_all()

    def close(self) -> None:
        """Start no more work, and wake all waiting threads."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _next(self, *, is_spare: bool) -> Place[Work] | None:
        """Return the next work: among the tenants with the least in progress, that of the one in turn."""
        if is_spare and self._under_way.total() < self._num_threads:
            return None
        place = min(self._waiting.firsts(), key=lambda one: self._under_way[one.tenant], default=None)
        if place is None or (is_spare and self._under_way[place.tenant]):
            return None
        return place
