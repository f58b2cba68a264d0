"""Looks for work that is due and lets some go on at once, one of each tenant: a store that hangs is its tenant's.

Knows not what it is: runs of pipelines, or extractions.
"""

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
"""Of a kind, in one control worker."""
CONNECTIONS = 2
"""Of a kind: the look for the next, and statements, which are short: between them is the store."""


class TenantTurns:
    """Goes on with what is due, of the tenants that were served least recently."""

    def __init__(
        self,
        kind: str,
        *,
        sessions: sessionmaker[Session],
        find: Callable[[Session], Sequence[Due]],
        advance: Callable[[str], bool],
        look_seconds: float,
    ) -> None:
        """`advance` returns False where another worker is at it; `kind` names the work in logs.

        `find` asks, each statement alone, and changes nothing.
        """
        self._find = find
        self._advance = advance
        self._lock = threading.Lock()
        self._under_way: set[str] = set()  # tenants of whom something goes on here
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
        """Begin to look."""
        self._looker.start()

    def wake(self) -> None:
        """Let it look at once."""
        self._looker.wake()

    def stop(self) -> None:
        """Take up no more, and wait for what goes on: it is given up between two of its effects."""
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
