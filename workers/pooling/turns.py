"""Decides whose piece a pooling model computes next: one at a time, since each uses all cores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from protocol.turns import Place, TurnQueue
from workers.prompt_lengths import Unwanted

_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """The batch and tenant that lines are computed for."""

    batch_id: str
    tenant: str = ""
    priority: int = 1
    """Smaller is more urgent."""


class PieceTurns:
    """Turns in order of urgency, then round robin between tenants. Safe to use from several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_taken = False
        self._waiting: TurnQueue[None] = TurnQueue()

    @contextmanager
    def held(self, asker: Asker, is_wanted: Callable[[], bool]) -> Iterator[None]:
        """Wait for the turn of a piece, and hold it for the block. Raise Unwanted once it is no longer wanted."""
        place = self._enter(asker)
        try:
            while not self._is_next(place):
                if not is_wanted():
                    raise Unwanted
        except BaseException:
            with self._changed:
                self._waiting.leave(place)
                self._changed.notify_all()
            raise
        try:
            yield
        finally:
            with self._changed:
                self._is_taken = False
                self._changed.notify_all()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def _enter(self, asker: Asker) -> Place[None]:
        with self._changed:
            return self._waiting.put(None, tenant=asker.tenant, rank=asker.priority)

    def _is_next(self, place: Place[None]) -> bool:
        """Wait a moment; take the turn if it has come."""
        with self._changed:
            is_next = self._changed.wait_for(
                lambda: not self._is_taken and self._waiting.first() is place, _LOOK_SECONDS
            )
            if is_next:
                self._waiting.take(place)
                self._is_taken = True
            return is_next
