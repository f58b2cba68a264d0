"""The API's log: one JSON object per line on stderr. Never keys, queries or content.

It limits the lines that peers can cause; `jobs.telemetry.logs` defines the format of records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from jobs.telemetry import logs

_SERVER_BURST = 50
_SERVER_LINES_A_SECOND = 1.0


class WithinBudget(logging.Filter):
    """Drops records beyond a budget of lines."""

    def __init__(self) -> None:
        super().__init__()
        self._budget = LineBudget(burst=_SERVER_BURST, lines_a_second=_SERVER_LINES_A_SECOND)

    def filter(self, record: logging.LogRecord) -> bool:
        return self._budget.spend() is not None


def configure(*, is_json: bool) -> None:
    """Send all records of this process to stderr as JSON; with `is_json` also printed output.

    The servers' own records, which peers can cause, are limited by a budget.
    """
    logs.configure("api", is_json=True, has_relay=is_json)
    for caused_by_peers in ("asyncio", "uvicorn.error"):
        logging.getLogger(caused_by_peers).addFilter(WithinBudget())


class LineBudget:
    """A limit on lines that peers can cause: `burst` at once, then `lines_a_second`."""

    def __init__(self, *, burst: int, lines_a_second: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._lines_a_second, self._monotonic = burst, lines_a_second, monotonic
        self._left, self._looked_at = float(burst), monotonic()
        self._num_left_out = 0

    def spend(self) -> int | None:
        """Return how many lines were dropped before this one; None if this one is to be dropped too."""
        now = self._monotonic()
        self._left = min(self._burst, self._left + (now - self._looked_at) * self._lines_a_second)
        self._looked_at = now
        if self._left < 1:
            self._num_left_out += 1
            return None
        self._left -= 1
        left_out, self._num_left_out = self._num_left_out, 0
        return left_out
