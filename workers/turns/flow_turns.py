"""Polls for due flows and advances several at once: of each tenant one per recipe, so a hanging store blocks no other.

The flows of recipes are found in one query.
"""

from __future__ import annotations

import threading
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


class FlowTurns:
    """Advances due flows, those of the least recently served tenants first."""

    def __init__(
        self,
        *,
        sessions: sessionmaker[Session],
        find: Callable[[Session], Sequence[Due]],
        advance: Callable[[Due], bool],
        look_seconds: float,
    ) -> None:
        """`advance` returns False if another worker has claimed the flow.

        `find` only reads, with each statement in autocommit.
        """
        self._find = find
        self._advance = advance
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
        self._queue.renew((due.turn, due) for due in self._find(session))
        while not self._looker.is_stopping and (due := self._open_next()) is not None:
            self._looker.begin(due.id, partial(self._advance, due), then=partial(self._close, due))

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
