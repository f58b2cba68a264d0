"""The API's log: one JSON object a line on stderr, whoever writes it. Never keys, queries or content.

Says how much peers may cause; `jobs.telemetry.logs` says how a record looks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from jobs.telemetry import logs

_SERVER_BURST = 50
_SERVER_LINES_A_SECOND = 1.0


class WithinBudget(logging.Filter):
    """Leave out records beyond a budget of lines."""

    def __init__(self) -> None:
        super().__init__()
        self._budget = LineBudget(burst=_SERVER_BURST, lines_a_second=_SERVER_LINES_A_SECOND)

    def filter(self, record: logging.LogRecord) -> bool:
        return self._budget.spend() is not None


def configure(*, is_json: bool) -> None:
    """Send all records of this process to stderr, as JSON in any case; with `is_json` also what is printed.

    The servers' own records, which peers cause, come no faster than a budget.
    """
    logs.configure("api", is_json=True, has_relay=is_json)
    for caused_by_peers in ("asyncio", "uvicorn.error"):
        logging.getLogger(caused_by_peers).addFilter(WithinBudget())


class LineBudget:
    """Bound the lines that anybody may cause: `burst` at once, then `lines_a_second`."""

    def __init__(self, *, burst: int, lines_a_second: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._lines_a_second, self._monotonic = burst, lines_a_second, monotonic
        self._left, self._looked_at = float(burst), monotonic()
        self._num_left_out = 0

    def spend(self) -> int | None:
        """Return how many lines were left out before this one; None where this one is to be left out too."""
        now = self._monotonic()
        self._left = min(self._burst, self._left + (now - self._looked_at) * self._lines_a_second)
        self._looked_at = now
        if self._left < 1:
            self._num_left_out += 1
            return None
        self._left -= 1
        left_out, self._num_left_out = self._num_left_out, 0
        return left_out
