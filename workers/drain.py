"""Shared state that tells every open chunk that the worker drains or is out of service. Stops nothing itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


class Drain:
    """`is_on` once the drain has begun; `is_over` once the grace period of open chunks has passed.

    A worker may also be taken out of service for a reason: it claims nothing, gives its chunks no grace, and runs on.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ends_at: float | None = None
        self.out_reason: str | None = None
        """Why the worker is out, if it is."""

    def begin(self, grace_seconds: float) -> None:
        self._ends_at = self._monotonic() + grace_seconds

    def take_out(self, reason: str) -> None:
        """Take the worker out of service until `come_back`; the first reason holds."""
        if self.out_reason is None:
            log.error("worker taken out reason=%s", reason)
            self.out_reason = reason

    def come_back(self) -> None:
        """Return to service."""
        log.info("worker is back, it was out reason=%s", self.out_reason)
        self.out_reason = None

    @property
    def is_out(self) -> bool:
        return self.out_reason is not None

    @property
    def is_on(self) -> bool:
        return self._ends_at is not None

    @property
    def is_over(self) -> bool:
        return self.is_out or (self._ends_at is not None and self._monotonic() >= self._ends_at)
