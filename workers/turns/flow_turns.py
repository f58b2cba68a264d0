"""Polls for due flows and advances several at once: of each tenant one per recipe, so a hanging store blocks no other.

The flows of recipes are found in one query.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from sqlalchemy.orm import Session, sessionmaker

from flows.due import Due
from protocol.turns import TurnQueue
from workers.turns.looker import Looker

MAX_AT_ONCE = 8
"""Flows in progress in one control worker."""
CONNECTIONS = 4
"""Connections: one for polling, and others for statements, which are short: the store is called in between."""
FRESH_SECONDS = 0.5
"""How long flows that a poll has found are begun without another poll, which is slow while thousands are under way."""
FRESH_TIMES = 20
"""At least this many times as long as the poll itself took, so that polls take a twentieth of the time."""
MOST_FRESH_SECONDS = 5.0
"""At most: a flow of a further tenant waits as long."""


class FlowTurns:
    """Advances due flows, those of the least recently served tenants first."""

    def __init__(
        self,
        *,
        sessions: sessionmaker[Session],
        find: Callable[[Session], Sequence[Due]],
        advance: Callable[[Due], bool],
        look_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`advance` returns False if another worker has claimed the flow.

        `find` is called with each statement in autocommit.
        """
        self._find = find
        self._advance = advance
        self._monotonic = monotonic
        self._fresh_until = -math.inf
        self._lock = threading.Lock()
        self._under_way: set[str] = set()  # turns with a flow in progress here
        self._queue: TurnQueue[Due] = TurnQueue()
        self._looker = Looker("flow", self._look, sessions=sessions, look_seconds=look_seconds, num_threads=MAX_AT_ONCE)

    def start(self) -> None:
        """Start polling."""
        self._looker.start()

    def wake(self) -> None:
        """Poll now."""
        self._looker.wake()

    def stop(self) -> None:
        """Start nothing more, and wait for what is in progress, which is given up between two of its effects."""
        self._looker.stop()

    def _look(self, session: Session) -> None:
        """Begin what is left of the last poll, or poll if nothing is or it is too long ago."""
        if self._is_full():
            return
        fresh_seconds = self._fresh_until - self._monotonic()
        if fresh_seconds > 0 and len(self._queue):
            self._looker.look_within(fresh_seconds)  # there may be more of other tenants
        else:
            self._poll(session)
        self._begin_found()

    def _poll(self, session: Session) -> None:
        began_at = self._monotonic()
        found = self._find(session)
        with self._lock:
            self._queue.renew((due.turn, due) for due in found)
        now = self._monotonic()
        self._fresh_until = now + min(max(FRESH_SECONDS, FRESH_TIMES * (now - began_at)), MOST_FRESH_SECONDS)

    def _begin_found(self) -> None:
        while not self._looker.is_stopping and (due := self._open_next()) is not None:
            self._looker.begin(due.id, partial(self._advance, due), then=partial(self._close, due))

    def _is_full(self) -> bool:
        with self._lock:
            return len(self._under_way) >= MAX_AT_ONCE

    def _open_next(self) -> Due | None:
        with self._lock:
            if len(self._under_way) >= MAX_AT_ONCE:
                return None
            place = next((one for one in self._queue.firsts() if one.tenant not in self._under_way), None)
            if place is None:
                return None
            self._under_way.add(place.tenant)
            return self._queue.take(place)

    def _close(self, due: Due, has_moved: bool) -> None:
        with self._lock:
            self._under_way.remove(due.turn)
        if has_moved:
            self._looker.wake()
        else:
            self._begin_found()  # without polling, which would find the same flow again
