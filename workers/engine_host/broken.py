"""Requests that a broken row has ended: they wait for another engine, and say together whether this one is to blame.

Starts no engine itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable

from engine.process.messages import EngineStats
from workers.engine_host.flights import Flight

log = logging.getLogger(__name__)

MAX_ENDS = 2
"""Ends by a broken row after which a line is given up."""
MAX_IN_A_ROW = 8
"""Such ends of lines, with no good row between, after which the engine is to blame."""
IDLE_SECONDS = 2.0
"""How long nothing must run before the engine starts anew: other lines may be on their way."""
RENEW_AFTER_SECONDS = 600.0
"""How long a request waits for others to end, at most, before the engine starts anew beneath them."""


class BrokenRequests:
    """Those that wait; `len()` is how many. The host calls everything under its lock."""

    def __init__(self, *, on_broken: Callable[[str], None], monotonic: Callable[[], float]) -> None:
        self._on_broken = on_broken
        self._monotonic = monotonic
        self._waiting: list[Flight] = []
        self._waiting_since = 0.0
        self._idle_since: float | None = None
        self.is_condemned = False
        """Whether nothing more is to go to this engine: a new one is wanted, whether or not anything waits for it."""
        self._in_a_row: set[Hashable] = set()  # ends since the last good row
        self._good_rows_before = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, flight: Flight, good_rows_before: int) -> bool:
        """Count an end, before which the engine had so many good rows; return whether the request is to run again."""
        owner = flight.owner
        if good_rows_before != self._good_rows_before:
            self._in_a_row.clear()
        self._good_rows_before = good_rows_before
        self._in_a_row.add((owner.line, owner.num_broken))
        in_a_row = len(self._in_a_row)
        log.warning("request broke, its logits are no numbers request=%s in_a_row=%d", owner.name, in_a_row)
        is_waiting = not flight.is_probe and owner.num_broken + 1 < MAX_ENDS
        if is_waiting:
            self._waiting_since = self._waiting_since if self._waiting else self._monotonic()
            self._waiting.append(flight)
            owner.set_aside()
        if in_a_row >= MAX_IN_A_ROW:
            self._in_a_row.clear()
            self.is_condemned = True
            self._on_broken(f"the engine gave {in_a_row} lines in a row no numbers: NaN or infinite logits")
        return is_waiting

    def drop(self, request_ids: Collection[int]) -> None:
        """Forget requests."""
        self._waiting = [flight for flight in self._waiting if flight.request_id not in request_ids]

    def want_new_engine(self, *, is_idle: bool) -> bool:
        """Tell whether to start one now: mostly when nothing would be lost by it. Asked again and again."""
        now = self._monotonic()
        if not is_idle or self._idle_since is None:
            self._idle_since = now if is_idle else None
        if self.is_condemned or not self._waiting:
            return self.is_condemned and is_idle
        is_rested = self._idle_since is not None and now - self._idle_since >= IDLE_SECONDS
        return is_rested or now - self._waiting_since >= RENEW_AFTER_SECONDS

    def end_life(self, stats: EngineStats) -> None:
        """Note the last numbers of an engine: the next one counts its good rows from 0."""
        if stats.requests.num_output_tokens - stats.requests.num_forced_tokens != self._good_rows_before:
            self._in_a_row.clear()
        self._good_rows_before = 0

    def pop_all(self) -> list[Flight]:
        """Return what waited: there is a new engine."""
        waiting, self._waiting = self._waiting, []
        self.is_condemned, self._idle_since = False, None
        return waiting
