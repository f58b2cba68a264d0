"""Polls for due work and advances several items at once, one per tenant, so a hanging store blocks only its tenant."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

from sqlalchemy.orm import Session, sessionmaker

from jobs.graphs.due import Due
from protocol.turns import TurnQueue
from workers.control_work import ControlParts
from workers.turns.looker import Looker

MAX_AT_ONCE = 4
"""Items of one kind in progress in one control worker."""
CONNECTIONS = 2
"""Connections per kind: one for polling, and one for statements, which are short: the store is called in between."""


class TenantTurns:
    """Advances due work, least recently served tenants first."""

    def __init__(
        self,
        kind: str,
        *,
        sessions: sessionmaker[Session],
        find: Callable[[Session], Sequence[Due]],
        advance: Callable[[str], bool],
        look_seconds: float,
    ) -> None:
        """`advance` returns False if another worker has claimed the item; `kind` names the work in logs.

        `find` only reads, with each statement in autocommit.
        """
        self._find = find
        self._advance = advance
        self._lock = threading.Lock()
        self._under_way: set[str] = set()  # tenants with an item in progress here
        self._queue: TurnQueue[Due] = TurnQueue()
        self._looker = Looker(kind, self._look, sessions=sessions, look_seconds=look_seconds, num_threads=MAX_AT_ONCE)

    @classmethod
    def of(
        cls,
        kind: str,
        parts: ControlParts,
        *,
        find: Callable[[Session], Sequence[Due]],
        advance: Callable[[str], bool],
    ) -> Self:
        """Return the turns of a control worker."""
        seconds = parts.settings.claim_alone_seconds
        return cls(kind, sessions=parts.sessions, find=find, advance=advance, look_seconds=seconds)

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
        self._queue.renew((due.tenant_id, due) for due in self._find(session))
        while not self._looker.is_stopping and (due := self._open_next()) is not None:
            self._looker.begin(due.id, partial(self._advance, due.id), then=partial(self._close, due))

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
            self._under_way.remove(due.tenant_id)
        if has_moved:
            self._looker.wake()
