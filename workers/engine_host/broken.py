"""Requests that a broken row has ended: they wait for a new engine, and together show whether this one is at fault."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable

from engine.process.messages import EngineStats
from workers.engine_host.flights import Flight

log = logging.getLogger(__name__)

MAX_ENDS = 2
"""Ends by a broken row after which a line fails."""
MAX_IN_A_ROW = 8
"""Such ends of lines, with no good row in between, after which the engine is considered faulty."""
IDLE_SECONDS = 2.0
"""Idle time before the engine is restarted: other lines may be about to arrive."""
RENEW_AFTER_SECONDS = 600.0
"""Longest time a request waits for others to end before the engine is restarted while they run."""


class BrokenRequests:
    """Broken requests that wait; `len()` is their number. The host calls everything under its lock."""

    def __init__(self, *, on_broken: Callable[[str], None], monotonic: Callable[[], float]) -> None:
        self._on_broken = on_broken
        self._monotonic = monotonic
        self._waiting: list[Flight] = []
        self._waiting_since = 0.0
        self._idle_since: float | None = None
        self.is_condemned = False
        """Whether this engine gets no more requests and is to be replaced, even if no request waits."""
        self._in_a_row: set[Hashable] = set()  # ends since the last good row
        self._good_rows_before = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, flight: Flight, good_rows_before: int) -> bool:
        """Count an end, with the engine's number of good rows before it; return whether the request is to run again."""
        owner = flight.owner
        if good_rows_before != self._good_rows_before:
            self._in_a_row.clear()
        self._good_rows_before = good_rows_before
        self._in_a_row.add((owner.line, owner.num_broken))
        in_a_row = len(self._in_a_row)
        log.warning("request broke, its logits are NaN or infinite request=%s in_a_row=%d", owner.name, in_a_row)
        is_waiting = not flight.is_probe and owner.num_broken + 1 < MAX_ENDS
        if is_waiting:
            self._waiting_since = self._waiting_since if self._waiting else self._monotonic()
            self._waiting.append(flight)
            owner.set_aside()
        if in_a_row >= MAX_IN_A_ROW:
            self._in_a_row.clear()
            self.is_condemned = True
            self._on_broken(f"the engine gave NaN or infinite logits for {in_a_row} lines in a row")
        return is_waiting

    def drop(self, request_ids: Collection[int]) -> None:
        """Drop requests."""
        self._waiting = [flight for flight in self._waiting if flight.request_id not in request_ids]

    def want_new_engine(self, *, is_idle: bool) -> bool:
        """Tell whether to start a new engine now, preferably while nothing runs. Called repeatedly."""
        now = self._monotonic()
        if not is_idle or self._idle_since is None:
            self._idle_since = now if is_idle else None
        if self.is_condemned or not self._waiting:
            return self.is_condemned and is_idle
        is_rested = self._idle_since is not None and now - self._idle_since >= IDLE_SECONDS
        return is_rested or now - self._waiting_since >= RENEW_AFTER_SECONDS

    def end_life(self, stats: EngineStats) -> None:
        """Record the final statistics of an engine; the next one counts its good rows from 0."""
        if stats.requests.num_output_tokens - stats.requests.num_forced_tokens != self._good_rows_before:
            self._in_a_row.clear()
        self._good_rows_before = 0

    def pop_all(self) -> list[Flight]:
        """Return the waiting requests, as there is a new engine."""
        waiting, self._waiting = self._waiting, []
        self.is_condemned, self._idle_since = False, None
        return waiting
