"""The worker's wish to stop, which every open chunk sees. Stops nothing itself."""

from __future__ import annotations

import time
from collections.abc import Callable


class Drain:
    """`is_on` from the start; `is_over` once the grace that open chunks have to finish has passed."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ends_at: float | None = None

    def begin(self, grace_seconds: float) -> None:
        self._ends_at = self._monotonic() + grace_seconds

    @property
    def is_on(self) -> bool:
        return self._ends_at is not None

    @property
    def is_over(self) -> bool:
        return self._ends_at is not None and self._monotonic() >= self._ends_at
