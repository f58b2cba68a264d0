"""Seats at a server: as many requests at once as its pace allows, the most urgent first, none while it cools down.

All methods run on one event loop.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

from workers.remote.calls.pace import Pace

Order = tuple[int, int, str, int]
"""Priority, chunk, beginning of the prompt, line: lower first, so that lines that share a prefix are neighbours."""


class Seats:
    """Hands out seats in order."""

    def __init__(self, pace: Pace, *, monotonic: Callable[[], float]) -> None:
        self._pace = pace
        self._monotonic = monotonic
        self._waiting: list[tuple[Order, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._opens_at = 0.0
        self._wake: asyncio.TimerHandle | None = None
        self.num_taken = 0

    @property
    def num_waiting(self) -> int:
        return sum(not future.done() for _, _, future in self._waiting)

    @property
    def is_full(self) -> bool:
        return self.num_taken >= self._pace.limit

    @property
    def closed_seconds(self) -> float:
        """Return for how long the seats stay closed."""
        return max(0.0, self._opens_at - self._monotonic())

    async def take(self, order: Order) -> None:
        """Wait for a seat."""
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (order, next(self._numbers), future))
        self._fill()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give_back()  # it was handed over at this very moment
            raise

    def give_back(self) -> None:
        self.num_taken -= 1
        self._fill()

    def close_for(self, seconds: float) -> None:
        """Hand out no seat for this long, at least; seats that are taken stay so."""
        self._opens_at = max(self._opens_at, self._monotonic() + seconds)
        self._fill()

    def open(self) -> None:
        """End a closure."""
        self._opens_at = 0.0
        self._fill()

    def _fill(self) -> None:
        if self.closed_seconds > 0:
            self._wake_later(self.closed_seconds)
            return
        while self._waiting and not self.is_full:
            _, _, future = heapq.heappop(self._waiting)
            if not future.done():
                self.num_taken += 1
                future.set_result(None)

    def _wake_later(self, seconds: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake = asyncio.get_running_loop().call_later(seconds, self._fill)
