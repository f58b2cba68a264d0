"""Divides a worker's time among its open chunks, by the tokens that its engine computes for each of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ChunkTime:
    """One chunk's share. Only the engine's reader thread adds tokens; only `WorkerTime` writes the rest."""

    def __init__(self) -> None:
        self.num_tokens = 0
        """Tokens that were computed for it."""
        self.num_counted = 0
        """Those of them whose time is in `seconds`."""
        self.seconds = 0.0
        """Time that has not been taken out yet."""

    def note(self, num_tokens: int) -> None:
        """Add tokens that were computed for the chunk."""
        self.num_tokens += num_tokens


class WorkerTime:
    """The time in which chunks are open. Safe to use from the threads of several chunks.

    It is divided whenever a chunk takes its share: by the tokens computed for each chunk since the last division. Time
    without tokens belongs to the next tokens, and idle time to no chunk. So the shares of all chunks sum up to the time
    in which any was open, however often they are taken.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._open: list[ChunkTime] = []
        self._since = monotonic()
        self._lock = threading.Lock()

    @contextmanager
    def divided_with(self, chunk: ChunkTime) -> Iterator[None]:
        """Include a chunk in the division while it is open."""
        with self._lock:
            if not self._open:
                self._since = self._monotonic()
            self._divide()
            self._open.append(chunk)
        try:
            yield
        finally:
            with self._lock:
                self._divide()
                self._open.remove(chunk)

    def take(self, chunk: ChunkTime) -> int:
        """Return the chunk's share since the last call, in whole microseconds; the rest is kept for later."""
        with self._lock:
            self._divide()
            microseconds = int(chunk.seconds * 1e6)
            chunk.seconds -= microseconds / 1e6
            return microseconds

    def _divide(self) -> None:
        new = [(chunk, chunk.num_tokens - chunk.num_counted) for chunk in self._open]
        total = sum(num_tokens for _, num_tokens in new)
        if not total:
            return
        now = self._monotonic()
        for chunk, num_tokens in new:
            chunk.seconds += (now - self._since) * num_tokens / total
            chunk.num_counted += num_tokens
        self._since = now
