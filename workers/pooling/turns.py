"""Whose piece a model that pools computes next: one at a time, since it has all cores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from workers.prompt_lengths import Unwanted

_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """For whom lines are computed."""

    batch_id: str
    tenant: str = ""
    priority: int = 1
    """Smaller is more urgent."""


class PieceTurns:
    """The most urgent first, then tenants by turns. Safe to use from several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_taken = False
        self._numbers = count()
        self._waiting: list[tuple[int, int, int]] = []  # priority, turn, number
        self._turns: dict[str, int] = {}  # by tenant, of its last piece
        self._last_turn = 0

    @contextmanager
    def held(self, asker: Asker, is_wanted: Callable[[], bool]) -> Iterator[None]:
        """Wait for the turn of a piece, and hold it for the block. Raises Unwanted once nobody waits for it."""
        place = self._enter(asker)
        try:
            while not self._is_next(place):
                if not is_wanted():
                    raise Unwanted
        except BaseException:
            with self._changed:
                self._waiting.remove(place)
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

    def _enter(self, asker: Asker) -> tuple[int, int, int]:
        with self._changed:
            if not self._waiting:
                self._turns = {tenant: turn for tenant, turn in self._turns.items() if turn >= self._last_turn}
            turn = max(self._turns.get(asker.tenant, 0), self._last_turn) + 1
            self._turns[asker.tenant] = turn
            place = asker.priority, turn, next(self._numbers)
            self._waiting.append(place)
            return place

    def _is_next(self, place: tuple[int, int, int]) -> bool:
        """Wait a moment; where it is this one's turn now, take it."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._is_taken and min(self._waiting) == place, _LOOK_SECONDS):
                return False
            self._waiting.remove(place)
            self._is_taken, self._last_turn = True, place[1]
            return True
