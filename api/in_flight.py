"""How much a tenant does at once in this process: counts, and refuses one too many.

Knows neither what is counted nor the other processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio

from jobs.errors import RateLimitError

RETRY_SECONDS = 1.0
_LOOK_SECONDS = 0.1


class InFlight:
    """For use on the event loop alone."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

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
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]

    @asynccontextmanager
    async def turn(self, tenant_id: str, what: str, *, allowed: int) -> AsyncIterator[None]:
        """As `hold`, and wait for one of `allowed` to end; how many wait, the caller bounds."""
        while self._counts[tenant_id, what] >= allowed:
            await anyio.sleep(_LOOK_SECONDS)
        with self.hold(tenant_id, what, allowed=allowed):
            yield
