"""Send progress from the engine's loop to its reader; the loop never waits for a slow reader.

A thread sends. Waiting deltas are merged by child of a request, so that at most one message waits: one delta for each
unfinished child, with the tokens that the reader has not received.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from engine.outputs import TokenDelta
from engine.process.messages import Progress
from engine.scheduling.decisions import Decision
from engine.stats import EngineStats

MAX_DECISIONS = 4096
"""Decisions kept for a slow reader; older ones are dropped."""

Child = tuple[int, int]


class Outbox:
    """Send `Progress` messages in order from a thread of its own. `put` and `close` belong to the loop's thread."""

    def __init__(self, send: Callable[[Progress], None]) -> None:
        """`send` may block. OSError means that the reader is gone; any other error is raised by the next `put`."""
        self._send = send
        self._has_changed = threading.Condition()
        self._due: dict[Child, TokenDelta] = {}
        self._decisions: deque[Decision] = deque(maxlen=MAX_DECISIONS)
        self._stats: EngineStats | None = None
        self._running_ids: list[int] | None = None
        self._is_due = False
        self._is_closing = False
        self._is_open = True
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Tell whether the reader is still connected."""
        return self._is_open

    def put(
        self,
        deltas: Sequence[TokenDelta],
        stats: EngineStats,
        decisions: Iterable[Decision] = (),
        *,
        running_ids: list[int] | None = None,
    ) -> None:
        """Queue deltas; without any, send a heartbeat.

        `running_ids` is kept until the next message carries it.
        """
        if self._error is not None:
            raise self._error
        with self._has_changed:
            for delta in deltas:
                self._join(delta)
            self._decisions.extend(decisions)
            self._stats = stats
            self._running_ids = self._running_ids if running_ids is None else running_ids
            self._is_due = True
            self._has_changed.notify()

    def _join(self, delta: TokenDelta) -> None:
        """Merge a delta into its child's waiting one."""
        child = delta.request_id, delta.index
        waiting = self._due.get(child)
        if waiting is None:
            self._due[child] = delta
        else:
            waiting.extend(delta)

    def close(self) -> None:
        """Send the remaining messages and end the thread."""
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
        except Exception as error:  # noqa: BLE001 - the edge of the thread: passed on to the loop
            self._error = error

    def _next(self) -> Progress | None:
        """Wait for a message to send; return None if no more will come."""
        with self._has_changed:
            self._has_changed.wait_for(lambda: self._is_due or self._is_closing)
            stats, self._stats, self._is_due = self._stats, None, False
            if stats is None:
                return None
            due, self._due = self._due, {}
            decisions, self._decisions = list(self._decisions), deque(maxlen=MAX_DECISIONS)
            running_ids, self._running_ids = self._running_ids, None
            return Progress(list(due.values()), stats, stats.scheduler.num_steps, decisions, running_ids)
