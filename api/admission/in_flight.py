"""Counts what each tenant has in flight in this process; one too many is refused or waits for its turn."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio

from jobs.errors import RateLimitError

RETRY_SECONDS = 1.0


class InFlight:
    """Counters by tenant. Use it only on the event loop."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._waiting: dict[tuple[str, str], deque[anyio.Event]] = {}

    @contextmanager
    def hold(self, tenant_id: str, what: str, *, allowed: int) -> Iterator[None]:
        """Count one of `what` for the block. Raise RateLimitError if `allowed` are counted already."""
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
        """Count like `hold`, but wait until one of `allowed` ends; the caller bounds how many wait."""
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
            if has_turn.is_set():  # the turn was passed on meanwhile
                self.end_turn(tenant_id, what)
            else:
                waiting.remove(has_turn)
            raise

    def end_turn(self, tenant_id: str, what: str) -> None:
        """Count one less, or pass the turn to the one that has waited longest."""
        key = (tenant_id, what)
        waiting = self._waiting.get(key)
        if waiting:
            waiting.popleft().set()
            return
        self._waiting.pop(key, None)
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
