"""How much a tenant does at once in this process: counts, and refuses one too many or has it wait its turn.

Knows neither what is counted nor the other processes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio

from jobs.errors import RateLimitError

RETRY_SECONDS = 1.0


class InFlight:
    """For use on the event loop alone."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._waiting: dict[tuple[str, str], deque[anyio.Event]] = {}

    @contextmanager
    def hold(self, tenant_id: str, what: str, *, allowed: int) -> Iterator[None]:
        """Count one of `what` for the block. Raises RateLimitError where `allowed` are counted already."""
        key = (tenant_id, what)
        if self._counts[key] >= allowed:
            raise RateLimitError(
                f"You have {self._counts[key]} {what} at once here and {allowed} are allowed. Wait until one ends.",
                code=f"{what}_exceeded",
                retry_after_seconds=RETRY_SECONDS,
            )
        self._counts[key] += 1
        try:
            yield
        finally:
            self.end_turn(tenant_id, what)

    @asynccontextmanager
    async def turn(self, tenant_id: str, what: str, *, allowed: int) -> AsyncIterator[None]:
        """As `hold`, and wait for one of `allowed` to end; how many wait, the caller bounds."""
        await self.take_turn(tenant_id, what, allowed=allowed)
        try:
            yield
        finally:
            self.end_turn(tenant_id, what)

    async def take_turn(self, tenant_id: str, what: str, *, allowed: int) -> None:
        """Wait until fewer than `allowed` are counted, in the order of arrival, and count one more."""
        key = (tenant_id, what)
        if self._counts[key] < allowed:
            self._counts[key] += 1
            return
        has_turn = anyio.Event()
        waiting = self._waiting.setdefault(key, deque())
        waiting.append(has_turn)
        try:
            await has_turn.wait()
        except BaseException:
            if has_turn.is_set():  # it was handed over meanwhile
                self.end_turn(tenant_id, what)
            else:
                waiting.remove(has_turn)
            raise

    def end_turn(self, tenant_id: str, what: str) -> None:
        """Count one less, or let whoever waits longest be counted in its place."""
        key = (tenant_id, what)
        waiting = self._waiting.get(key)
        if waiting:
            waiting.popleft().set()
            return
        self._waiting.pop(key, None)
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
