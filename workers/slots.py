"""Slots for the open work of a process: K for any work, and a few extra for higher classes and for new tenants."""

from __future__ import annotations

import threading

from jobs.chunks.fair_order import CLASSES
from jobs.chunks.wanted import Wanted
from jobs.states import Priority

MOST_ABOVE = len(CLASSES) + 1
"""Most slots above K, including one for a claim whose class or room has changed meanwhile."""


class Slots:
    """K slots for work of any class, and extra ones for a class: one per class between it and the lowest open one.

    With K slots full of bulk work, one piece of normal work can still start, or up to two of urgent work. One more slot
    is for a tenant that has nothing open, for work at least as high as the lowest open class, so that it need not wait
    for another tenant's slowest line.
    """

    def __init__(self, num_slots: int, *, are_newcomers_in_turn: bool = True) -> None:
        """`are_newcomers_in_turn`: their slot is closed to tenants that have had more than those with open work."""
        self._num_slots = num_slots
        self._are_newcomers_in_turn = are_newcomers_in_turn
        self._lock = threading.Lock()
        self._open: list[tuple[int, str]] = []  # rank and tenant
        self._newcomers: list[tuple[int, str]] = []  # in the newcomers' slot; more than one after a changed claim

    @property
    def wanted(self) -> Wanted:
        """Return what may be opened now."""
        with self._lock:
            return Wanted(
                classes=[priority for rank, priority in enumerate(CLASSES) if self._has_room(rank)],
                newcomer_classes=[] if self._newcomers else CLASSES[: self._worst + 1],
                present={tenant_id for _, tenant_id in self._all},
                are_newcomers_in_turn=self._are_newcomers_in_turn,
            )

    @property
    def is_idle(self) -> bool:
        """Tell whether nothing is open."""
        with self._lock:
            return not self._all

    @property
    def has_room_for_all(self) -> bool:
        """Tell whether one of the K slots is free."""
        with self._lock:
            return len(self._open) < self._num_slots

    def open(self, priority: Priority, tenant_id: str) -> None:
        """Record that a piece of work has started; it counts even if its room is gone meanwhile."""
        rank = CLASSES.index(priority)
        with self._lock:
            (self._open if self._has_room(rank) else self._newcomers).append((rank, tenant_id))

    def close(self, priority: Priority, tenant_id: str) -> None:
        """Record that a piece of work has ended."""
        work = (CLASSES.index(priority), tenant_id)
        with self._lock:
            (self._newcomers if work in self._newcomers else self._open).remove(work)

    @property
    def _all(self) -> list[tuple[int, str]]:
        return self._open + self._newcomers

    @property
    def _worst(self) -> int:
        return max((rank for rank, _ in self._all), default=0)

    def _has_room(self, rank: int) -> bool:
        return len(self._open) < self._num_slots + max(0, self._worst - rank)
