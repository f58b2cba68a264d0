"""Carry progress from the engine's loop to its reader: the loop never waits for a slow reader.

A thread sends; what it cannot send yet is joined by child of a request, so that no more waits than one message holds:
one delta for each unfinished child, with the tokens that the reader has not taken.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from engine.outputs import TokenDelta
from engine.process.messages import Progress
from engine.scheduling.decisions import Decision
from engine.stats import EngineStats

MAX_DECISIONS = 4096
"""Decisions that wait for a slow reader; older ones are dropped."""


class Outbox:
    """Send `Progress` messages in order from a thread of its own. `put` and `close` belong to the loop's thread."""

    def __init__(self, send: Callable[[Progress], None]) -> None:
        """`send` may block. When it raises OSError the reader is gone; any other error is raised by the next `put`."""
        self._send = send
        self._has_changed = threading.Condition()
        self._pending: dict[tuple[int, int], TokenDelta] = {}
        self._decisions: deque[Decision] = deque(maxlen=MAX_DECISIONS)
        self._stats: EngineStats | None = None
        self._is_closing = False
        self._is_open = True
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Tell whether the reader is still there."""
        return self._is_open

    def put(self, deltas: Iterable[TokenDelta], stats: EngineStats, decisions: Iterable[Decision] = ()) -> None:
        """Hand over what a step brought; with no deltas it is a sign of life."""
        if self._error is not None:
            raise self._error
        with self._has_changed:
            for delta in deltas:
                child = delta.request_id, delta.index
                waiting = self._pending.get(child)
                if waiting is None:
                    self._pending[child] = delta
                else:
                    waiting.extend(delta)
            self._decisions.extend(decisions)
            self._stats = stats
            self._has_changed.notify()

    def close(self) -> None:
        """Send what is left and end the thread."""
        with self._has_changed:
            self._is_closing = True
            self._has_changed.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while (progress := self._next()) is not None:
                self._send(progress)
        except OSError:
            self._is_open = False
        except Exception as error:  # noqa: BLE001 - the edge of the thread: the loop must hear of it
            self._error = error

    def _next(self) -> Progress | None:
        """Wait for something to send; None when nothing more will come."""
        with self._has_changed:
            self._has_changed.wait_for(lambda: self._stats is not None or self._is_closing)
            stats, self._stats = self._stats, None
            if stats is None:
                return None
            pending, self._pending = self._pending, {}
            decisions, self._decisions = list(self._decisions), deque(maxlen=MAX_DECISIONS)
            return Progress(list(pending.values()), stats, stats.scheduler.num_steps, decisions)
