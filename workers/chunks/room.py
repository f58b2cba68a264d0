"""Limits how many long lines are prepared at once, in order of arrival.

On leaving, freed memory is returned to the system.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from workers.prompt_lengths import Unwanted

ROOM_BYTES = 4 * 2**20
"""Total size of lines that are prepared at once in one worker; a longer line is prepared alone.

Tokenising takes up to 230 bytes of memory per token, and 80 per byte: 540 MB for a text of 4 MB that fits into a
context of a million tokens (demo model, November 2026).
"""

_LOOK_SECONDS = 0.2
"""Poll interval of waiters for cancellation."""


class Room:
    """A limit on the bytes inside. Safe to use from several threads."""

    def __init__(self, max_bytes: int = ROOM_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def inside(self, size_bytes: int, *, is_wanted: Callable[[], bool]) -> Iterator[None]:
        """Wait until there is room, and hold it. Raise Unwanted once it is no longer wanted."""
        self._enter(size_bytes, is_wanted)
        try:
            yield
        finally:
            _give_back_memory()
            with self._changed:
                self._num_bytes -= size_bytes
                self._changed.notify_all()

    def _enter(self, size_bytes: int, is_wanted: Callable[[], bool]) -> None:
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            try:
                while is_wanted() and not (self._queue[0] is ticket and self._has_room(size_bytes)):
                    self._changed.wait(_LOOK_SECONDS)
                if not is_wanted():
                    raise Unwanted
                self._num_bytes += size_bytes
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()

    def _has_room(self, size_bytes: int) -> bool:
        return self._num_bytes == 0 or self._num_bytes + size_bytes <= self._max_bytes


def _give_back_memory() -> None:
    """Return freed memory to the system: glibc keeps what every thread has freed, 290 MB after a text of 4 MB."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)
