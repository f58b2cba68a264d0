"""Counts the running lines by batch, for workers without an engine process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from jobs.chunks.fleet import RunningLines


class RunningCount:
    """Running lines by batch; safe to use from several threads."""

    def __init__(self) -> None:
        self._num_lines: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def including(self, batch_id: str, num_lines: int) -> Iterator[None]:
        """Count lines of a batch as running until the block ends."""
        with self._lock:
            self._num_lines[batch_id] += num_lines
        try:
            yield
        finally:
            with self._lock:
                self._num_lines[batch_id] -= num_lines
                if not self._num_lines[batch_id]:
                    del self._num_lines[batch_id]

    def by_batch(self) -> Mapping[str, RunningLines]:
        with self._lock:
            return {batch_id: RunningLines(num_lines=num_lines) for batch_id, num_lines in self._num_lines.items()}
