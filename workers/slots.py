"""How many pieces of work a process has open at once, by class: K of any, and a few above them for better ones.

Knows nothing of what is open but its class.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from jobs.chunks.fairshare import CLASSES
from jobs.states import Priority

MOST_ABOVE = len(CLASSES) - 1
"""Slots above K, at most."""


class Slots:
    """K slots for work of any class, and above them one for each class between the worst that is open and a better one.

    So with K slots full of bulk work, one piece of normal work starts beside it, and of urgent work up to two.
    """

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._lock = threading.Lock()
        self._open: list[int] = []  # ranks

    @property
    def classes(self) -> Sequence[Priority]:
        """Return the classes of which another piece of work may be opened now, best first: all, some or none."""
        with self._lock:
            worst = max(self._open, default=0)
            most = [self._num_slots + max(0, worst - rank) for rank in range(len(CLASSES))]
            return [priority for rank, priority in enumerate(CLASSES) if len(self._open) < most[rank]]

    @property
    def has_room_for_all(self) -> bool:
        """Tell whether one of the K slots is free."""
        with self._lock:
            return len(self._open) < self._num_slots

    def open(self, priority: Priority) -> None:
        """Note that a piece of work has started."""
        with self._lock:
            self._open.append(CLASSES.index(priority))

    def close(self, priority: Priority) -> None:
        """Note that a piece of work has ended."""
        with self._lock:
            self._open.remove(CLASSES.index(priority))
