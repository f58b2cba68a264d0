"""Send progress from the engine's loop to its reader; the loop never waits for a slow reader.

A thread sends. Waiting deltas are merged by child of a request, so that at most one message waits: one delta for each
unfinished child, with the tokens that the reader has not received.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from engine.outputs import TokenDelta
from engine.process.messages import Progress
from engine.scheduling.decisions import Decision
from engine.stats import EngineStats

MAX_DECISIONS = 4096
"""Decisions kept for a slow reader; older ones are dropped."""

HOLD_SECONDS = 0.2
"""How long unwatched tokens may wait before their child ends: each delta costs the reader a look-up."""

Child = tuple[int, int]


class Outbox:
    """Send `Progress` messages in order from a thread of its own. `put` and `close` belong to the loop's thread."""

    def __init__(self, send: Callable[[Progress], None], *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`send` may block. OSError means that the reader is gone; any other error is raised by the next `put`."""
        self._send = send
        self._monotonic = monotonic
        self._has_changed = threading.Condition()
        self._watched: dict[int, int] = {}  # number of unfinished children, by request id
        self._held: dict[Child, TokenDelta] = {}
        self._released_at = monotonic()
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

    def watch(self, request_id: int, *, num_children: int) -> None:
        """Send the tokens of a request as they come: its reader searches them for a stop string."""
        self._watched[request_id] = num_children

    def put(
        self,
        deltas: Sequence[TokenDelta],
        stats: EngineStats,
        decisions: Iterable[Decision] = (),
        *,
        running_ids: list[int] | None = None,
    ) -> None:
        """Queue the deltas of a step; without deltas send a heartbeat and everything that waits.

        `running_ids` is kept until the next message carries it.
        """
        if self._error is not None:
            raise self._error
        now = self._monotonic()
        with self._has_changed:
            for delta in deltas:
                self._join(delta)
            if not deltas or now - self._released_at >= HOLD_SECONDS:
                self._release()
                self._released_at = now
            self._decisions.extend(decisions)
            self._stats = stats
            self._running_ids = self._running_ids if running_ids is None else running_ids
            self._is_due = self._is_due or bool(self._due) or not deltas
            if self._is_due:
                self._has_changed.notify()

    def _join(self, delta: TokenDelta) -> None:
        """Merge a delta into its child's waiting one; it is due if it ends the child or is watched."""
        child = delta.request_id, delta.index
        is_due = delta.finish_reason is not None or delta.request_id in self._watched
        if delta.finish_reason is not None:
            self._count_end(delta.request_id)
        waiting = self._due.get(child) or self._held.get(child)
        if waiting is None:
            waiting = delta
        else:
            waiting.extend(delta)
        if is_due:
            self._held.pop(child, None)
            self._due[child] = waiting
        elif child not in self._due:
            self._held[child] = waiting

    def _count_end(self, request_id: int) -> None:
        left = self._watched.pop(request_id, 0) - 1
        if left > 0:
            self._watched[request_id] = left

    def _release(self) -> None:
        self._due |= self._held
        self._held = {}

    def close(self) -> None:
        """Send the remaining messages and end the thread."""
        with self._has_changed:
            self._release()
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
