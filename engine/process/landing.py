"""Received requests that the engine does not have yet: a limited number is added between two steps.

A line may have thousands of prompts, and adding all of them takes as long as many steps: more urgent requests and other
tenants would wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from engine.scheduling.request import NewRequest
from protocol.turns import Place, TurnQueue

ADDED_AT_ONCE = 256
"""Requests added between two steps: more than a step starts."""


class Landing:
    """A queue: the most urgent first, then round-robin over tenants. `len()` is how many wait."""

    def __init__(self, add: Callable[[NewRequest], None]) -> None:
        self._add = add
        self._queue: TurnQueue[NewRequest] = TurnQueue()
        self._places: dict[int, Place[NewRequest]] = {}  # by request id

    def __len__(self) -> int:
        return len(self._places)

    def put(self, requests: Iterable[NewRequest]) -> None:
        """Queue requests to be added."""
        for new in requests:
            self.add_now([new.request_id])  # if another with this id waits: the engine then refuses the new one
            self._places[new.request_id] = self._queue.put(new, tenant=new.tenant, rank=new.priority)

    def add_some(self) -> None:
        """Add the next requests, at most ADDED_AT_ONCE."""
        num_added = 0
        while num_added < ADDED_AT_ONCE and (place := self._queue.first()) is not None:
            new = self._queue.take(place)
            del self._places[new.request_id]
            self._add(new)
            num_added += 1

    def add_now(self, request_ids: Iterable[int]) -> None:
        """Add the named requests that wait: they are about to be aborted, and the engine reports how they end."""
        for request_id in request_ids:
            place = self._places.pop(request_id, None)
            if place is not None:
                self._queue.leave(place)
                self._add(place.work)
