"""The lines of one chunk that readers work at. Knows no lease, no results and no SQL."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from jobs.chunks.recording import LineResult
from jobs.errors import ServiceError
from jobs.lines.reading import RawLine
from workers.preparing.readers import ReaderPool, Readers

Ended = LineResult | ServiceError
"""A result, or why there may be one later: no line fails of a service that is away."""


class DocumentLines:
    """Hands lines to the pool, as many at once as it has threads. `len()` is how many have not ended."""

    def __init__(
        self, pool: ReaderPool, answer: Callable[[RawLine, Readers], LineResult], *, tenant_id: str, batch_id: str
    ) -> None:
        """`answer` is called in a thread of the pool, in the tenant's turn; it raises ServiceError alone."""
        self._pool = pool
        self._tenant_id = tenant_id
        self._batch_id = batch_id
        self._answer = answer
        self._waiting: deque[RawLine] = deque()
        self.num_held_back = 0
        """Lines that are left for another time."""
        self._num_running = 0
        self._is_dropped = False
        self._is_over = False
        self._ended: queue.SimpleQueue[Ended | None] = queue.SimpleQueue()  # None: held back

    def __len__(self) -> int:
        return len(self._waiting) + self._num_running

    def start(self, line: RawLine) -> None:
        """Have a line answered, in its turn."""
        self._waiting.append(line)
        self._fill()

    def wait_finished(self, timeout_seconds: float) -> Iterator[Ended]:
        """Wait for the end of a line, then yield all that have ended."""
        try:
            first = self._ended.get(timeout=timeout_seconds)
        except queue.Empty:
            return
        yield from self._left(first)
        yield from self.finished()

    def finished(self) -> Iterator[Ended]:
        """Yield the lines that have ended since they were last asked for."""
        while not self._ended.empty():
            yield from self._left(self._ended.get())

    def hold_back(self) -> None:
        """Begin no further line: those that no reader has begun are left for another time."""
        self._is_over = True
        self.num_held_back += len(self._waiting)
        self._waiting.clear()

    def drop_all(self) -> list[Ended]:
        """Forget every line: what is being read is read to its end, and nobody hears of it."""
        self._is_dropped = True
        self._waiting.clear()
        self._num_running = 0
        return []

    def _left(self, ended: Ended | None) -> Iterator[Ended]:
        if not self._is_dropped:
            self._num_running -= 1
            self._fill()
        if ended is None:
            self.num_held_back += 1
        else:
            yield ended

    def _fill(self) -> None:
        while self._waiting and self._num_running < self._pool.num_threads:
            self._num_running += 1
            line = self._waiting.popleft()
            self._pool.submit(partial(self._run, line), tenant_id=self._tenant_id)

    def _run(self, line: RawLine, readers: Readers) -> None:
        if self._is_dropped:
            return
        if self._is_over:
            self._ended.put(None)
            return
        try:
            with self._pool.running.including(self._batch_id, 1):
                ended: Ended = self._answer(line, readers)
        except ServiceError as error:
            ended = error
        self._ended.put(ended)
