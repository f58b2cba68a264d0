"""Starts the batches that wait for a control worker: by class, then fair share between tenants, then age.

Two at a time, with extra slots for batches of a higher class and for newcomers.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial

from sqlalchemy.orm import Session, sessionmaker

from jobs.batches import sweeps
from jobs.batches.sweeps import DueBatch
from jobs.chunks.fair_order import effective_rank
from jobs.chunks.wanted import Wanted
from jobs.settings import Settings
from jobs.states import BatchState, Priority
from protocol.turns import Place, TurnQueue
from workers.slots import MOST_ABOVE, Slots
from workers.turns.looker import Looker

NUM_SLOTS = 2
"""Batches of any class that run at once. Extra slots are for higher classes and for newcomers: see `Slots`."""

MAX_BATCHES = NUM_SLOTS + MOST_ABOVE
"""Most batches at once."""

FRESH_SECONDS = 0.25
"""How long batches that a poll has found are begun without another poll: a new one of a better class waits as long."""


class Turns:
    """Decides which batch is next: by class, with ageing as for chunks, then the least recently served tenant.

    As for chunks, a tenant's unserved work ages, not each batch: otherwise the old backlog of one tenant would precede
    every new batch of all others.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._queue: TurnQueue[DueBatch] = TurnQueue()
        self._served_at: dict[tuple[str, Priority], float] = {}

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def renew(self, due: Iterable[DueBatch]) -> None:
        """Replace the batches that wait."""
        by_age = sorted(due, key=lambda batch: (-batch.waited, batch.batch_id))
        self._queue.renew((batch.tenant_id, batch) for batch in by_age)

    def take_next(self, wanted: Wanted) -> DueBatch | None:
        """Remove and return the next batch that may be opened, and record its tenant as served."""
        in_order = sorted(self._queue, key=self._rank)
        chosen = next((place for place in in_order if place.work.priority in wanted.classes), None)
        chosen = chosen or self._first_newcomer(in_order, wanted)
        if chosen is None:
            return None
        self._served_at[chosen.tenant, chosen.work.priority] = self._monotonic()
        return self._queue.take(chosen)

    @staticmethod
    def _first_newcomer(in_order: Iterable[Place[DueBatch]], wanted: Wanted) -> Place[DueBatch] | None:
        turn = next((place for place in in_order if place.work.priority in wanted.newcomer_classes), None)
        return None if turn is None or turn.tenant in wanted.present else turn

    def _rank(self, place: Place[DueBatch]) -> int:
        return effective_rank(place.work.priority, self._unserved(place.work))

    def _unserved(self, batch: DueBatch) -> timedelta:
        """Return how long a batch has waited since its tenant was last served in its class."""
        served_at = self._served_at.get((batch.tenant_id, batch.priority))
        if served_at is None:
            return batch.waited
        return min(batch.waited, timedelta(seconds=self._monotonic() - served_at))


class DueBatches:
    """Starts due batches in their turns."""

    def __init__(
        self,
        sessions: sessionmaker[Session],
        *,
        do: Callable[[DueBatch], bool],
        settings: Settings,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`do` returns False if another worker has claimed the batch; that batch, or one that fails, waits a while."""
        self._do = do
        self._settings = settings
        self._monotonic = monotonic
        self._turns = Turns(monotonic=monotonic)
        self._found_at = -math.inf
        self._slots = Slots(NUM_SLOTS)
        self._lock = threading.Lock()
        self._left_until: dict[tuple[str, BatchState], float | None] = {}  # None: being done
        self._looker = Looker(
            "batch",
            self._look,
            sessions=sessions,
            look_seconds=settings.claim_alone_seconds,
            num_threads=MAX_BATCHES,
        )

    def start(self) -> None:
        """Start polling."""
        self._looker.start()

    def wake(self) -> None:
        """Poll now."""
        self._looker.wake()

    def stop(self) -> None:
        """Start nothing more, and wait for what is in progress."""
        self._looker.stop()

    def _look(self, session: Session) -> None:
        while not self._looker.is_stopping and self._take_up_next(session):
            pass

    def _take_up_next(self, session: Session) -> bool:
        wanted = self._slots.wanted
        if not wanted.all_classes:
            return False
        chosen = self._chosen(session, wanted)
        if chosen is None:
            return False
        self._leave(chosen, until=None)
        self._slots.open(chosen.priority, chosen.tenant_id)
        what = f"{chosen.batch_id} state={chosen.state}"
        self._looker.begin(what, partial(self._do, chosen), then=partial(self._close, chosen))
        return True

    def _chosen(self, session: Session, wanted: Wanted) -> DueBatch | None:
        """Return the next batch of the last poll, or poll if none is left of it or it is too long ago."""
        fresh_seconds = self._found_at + FRESH_SECONDS - self._monotonic()
        if fresh_seconds > 0 and self._turns.num_waiting:
            chosen = self._turns.take_next(wanted)
            if chosen is None:  # there may be a new one of a better class
                self._looker.look_within(fresh_seconds)
            return chosen
        is_any_open = sweeps.is_any_open(session)
        self._turns.renew(sweeps.due_batches(session, but_for=self._left()) if is_any_open else ())
        self._found_at = self._monotonic()
        return self._turns.take_next(wanted)

    def _left(self) -> list[tuple[str, BatchState]]:
        """Return the batches that are in progress or were tried recently."""
        now = self._monotonic()
        with self._lock:
            self._left_until = {key: until for key, until in self._left_until.items() if until is None or until > now}
            return list(self._left_until)

    def _leave(self, batch: DueBatch, *, until: float | None) -> None:
        with self._lock:
            self._left_until[batch.batch_id, batch.state] = until

    def _close(self, batch: DueBatch, is_done: bool) -> None:
        seconds = 0.0 if is_done else self._settings.hint_again_seconds
        self._leave(batch, until=self._monotonic() + seconds)
        self._slots.close(batch.priority, batch.tenant_id)
        self._looker.wake()
