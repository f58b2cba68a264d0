"""Requests that have come in and that the engine does not have yet: some are added between two steps.

A line may have thousands of prompts, and to add them all takes as long as many steps: what is more urgent, and other
tenants, would wait for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import count

from engine.scheduling.request import NewRequest

ADDED_AT_ONCE = 256
"""Between two steps: more than a step starts."""


class Landing:
    """The most urgent first, then tenants by turns. `len()` is how many wait."""

    def __init__(self, add: Callable[[NewRequest], None]) -> None:
        self._add = add
        self._waiting: dict[int, NewRequest] = {}  # by request id
        self._order: list[tuple[int, int, int, int]] = []  # priority, turn, number, request id
        self._numbers = count()
        self._turns: dict[tuple[int, str], int] = {}  # by priority and tenant, of the last one that came
        self._last_turns: dict[int, int] = {}  # by priority, of the last one that was added

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, requests: Iterable[NewRequest]) -> None:
        """Take requests in, to be added."""
        for new in requests:
            self.add_now([new.request_id])  # of one that waits under the same id, which the engine then refuses
            key = (new.priority, new.tenant)
            turn = max(self._turns.get(key, 0), self._last_turns.get(new.priority, 0)) + 1
            self._turns[key] = turn
            self._waiting[new.request_id] = new
            heapq.heappush(self._order, (new.priority, turn, next(self._numbers), new.request_id))

    def add_some(self) -> None:
        """Add the next ones, at most ADDED_AT_ONCE."""
        num_added = 0
        while self._order and num_added < ADDED_AT_ONCE:
            priority, turn, _, request_id = heapq.heappop(self._order)
            if request_id in self._waiting:
                self._last_turns[priority] = turn
                self._add(self._waiting.pop(request_id))
                num_added += 1
        if not self._order:
            self._turns.clear()
            self._last_turns.clear()

    def add_now(self, request_ids: Iterable[int]) -> None:
        """Add those of the named ones that wait: they are to be aborted, and the engine says how they end."""
        for request_id in request_ids:
            new = self._waiting.pop(request_id, None)
            if new is not None:
                self._add(new)
