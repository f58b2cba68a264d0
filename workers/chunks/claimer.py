"""Claims chunks for one worker's slots: when a chunk ends, when a hint comes, and periodically.

The fair order decides which chunk is next.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta

from sqlalchemy.orm import Session, sessionmaker

from jobs.chunks import claiming, ready_queues
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.wanted import Wanted
from jobs.database import transaction
from jobs.engines.engine import OWN_ENGINE, ServingEngine
from jobs.errors import ServiceError
from jobs.lines.document_bodies import PREPARE_MODEL
from jobs.settings import Settings
from jobs.states import Priority
from jobs.telemetry.declared import CHUNKS_CLAIMED, CHUNKS_ENDED
from jobs.telemetry.meters import Meters
from workers.drain import Drain
from workers.slots import MOST_ABOVE, Slots

log = logging.getLogger(__name__)

LOOK_ABOVE_SECONDS = 0.5
"""Longest poll interval of a full worker for work of a higher class and for newcomers: how long those wait."""
_DRAIN_CHECK_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Hint:
    chunk_id: int
    is_answered: threading.Event = field(default_factory=threading.Event)


class Claimer:
    """One thread claims chunks and others run them, as long as slots are free and the fair order has work."""

    def __init__(
        self,
        *,
        worker_id: str,
        model: str,
        run: Callable[[ClaimedChunk], bool],
        engine: Callable[[], ServingEngine] = lambda: OWN_ENGINE,
        sessions: sessionmaker[Session],
        settings: Settings,
        drain: Drain,
        meters: Meters,
    ) -> None:
        """`run` returns whether the chunk was finished; if not, the next claim may wait a moment.

        `engine` returns what the worker's engine is and can do now.
        """
        self._worker_id = worker_id
        self._model = model
        self._run = run
        self._engine = engine
        self._sessions = sessions
        self._settings = settings
        self._drain = drain
        self._meters = meters
        # Document readers have one process more than slots, reserved for newcomers; an engine is shared by all.
        self._slots = Slots(settings.worker_chunks, are_newcomers_in_turn=model != PREPARE_MODEL)
        self._open: set[tuple[int, int]] = set()  # chunks and the fences under which they run here
        self._hints: queue.SimpleQueue[_Hint] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._is_paused = False
        self._thread = threading.Thread(target=self._claim_until_drained, name="claim", daemon=True)
        self._executor = ThreadPoolExecutor(settings.worker_chunks + MOST_ABOVE, thread_name_prefix="chunk")

    @property
    def is_idle(self) -> bool:
        """Tell whether no chunk is open."""
        return self._slots.is_idle

    def start(self) -> None:
        """Start claiming."""
        self._thread.start()

    def pause(self, *, is_paused: bool) -> None:
        """Stop or resume claiming; running chunks continue. Hints wait."""
        if is_paused != self._is_paused:
            log.info("claiming changed worker_id=%s is_paused=%s", self._worker_id, is_paused)
            self._is_paused = is_paused
            self._wake.set()

    def follow_hint(self, chunk_id: int) -> None:
        """Claim a chunk, or the next one in order if it is gone; return at once when the worker drains.

        Waits for a free slot, so that the next hint goes to a worker that has one.
        """
        hint = _Hint(chunk_id=chunk_id)
        self._hints.put(hint)
        self._wake.set()
        while not self._drain.is_on and not hint.is_answered.wait(_DRAIN_CHECK_SECONDS):
            pass

    def join(self) -> None:
        """Wait until no chunk is open; the drain has begun."""
        assert self._drain.is_on, "chunks would be claimed forever"
        self._wake.set()
        self._thread.join()
        self._executor.shutdown()

    def _claim_until_drained(self) -> None:
        while not self._drain.is_on:
            self._wake.clear()  # before claiming, so that work that arrives meanwhile is claimed as well
            while not self._drain.is_on and self._claim_one():
                pass
            self._wake.wait(self._pause_seconds())

    def _pause_seconds(self) -> float:
        """Return the longest wait, randomised so that the workers of a fleet do not poll all at once."""
        is_full = not self._slots.has_room_for_all
        seconds = LOOK_ABOVE_SECONDS if is_full else self._settings.claim_alone_seconds
        return seconds * random.uniform(0.5, 1.0)

    def _claim_one(self) -> bool:
        """Claim a chunk if a slot may take one, and run it; return whether there was one."""
        wanted = self._slots.wanted
        if self._is_paused or self._drain.is_out or not wanted.all_classes:
            return False
        try:
            claim = self._claim(wanted)
        except ServiceError as error:
            log.warning("claiming failed error=%s", error)
            return False
        except Exception:
            log.exception("claiming failed")  # the thread must survive: no other claims
            return False
        if claim is None:
            return False
        if (claim.chunk_id, claim.fence) in self._open:
            # The database lost the last claim and gave it out again: the run that is in progress here holds it.
            log.warning("chunk claimed twice under one fence chunk_id=%s fence=%d", claim.chunk_id, claim.fence)
            return False
        self._open.add((claim.chunk_id, claim.fence))
        self._slots.open(Priority(claim.priority), claim.tenant_id)
        self._executor.submit(self._run_in_slot, claim)
        return True

    def _claim(self, wanted: Wanted) -> ClaimedChunk | None:
        hint = self._next_hint()
        try:
            with transaction(self._sessions) as session:
                hinted = None if hint is None else self._claim_hinted(session, hint.chunk_id)
                claim = hinted or claiming.claim_next(
                    session,
                    model=self._model,
                    worker_id=self._worker_id,
                    lease=self._settings.lease,
                    engine=self._engine(),
                    wanted=wanted,
                    urgent_tokens=self._settings.tenant_urgent_tokens,
                )
            if claim is not None:
                self._meters.count(CHUNKS_CLAIMED, "turn" if hinted is None else "hint")
            return claim
        finally:
            if hint is not None:
                hint.is_answered.set()

    def _claim_hinted(self, session: Session, chunk_id: int) -> ClaimedChunk | None:
        within = timedelta(seconds=self._settings.hint_again_seconds)
        waited = ready_queues.hint_age(session, chunk_id, within=within)
        if waited is None:
            return None
        claim = claiming.claim_chunk(
            session,
            chunk_id,
            worker_id=self._worker_id,
            lease=self._settings.lease,
            engine=self._engine(),
            urgent_tokens=self._settings.tenant_urgent_tokens,
        )
        return None if claim is None else replace(claim, hint_waited=waited)

    def _next_hint(self) -> _Hint | None:
        """Return a hint if there is one and a slot for any class."""
        if not self._slots.has_room_for_all or self._hints.empty():
            return None
        return self._hints.get()

    def _run_in_slot(self, claim: ClaimedChunk) -> None:
        is_finished, outcome = False, "error"
        try:
            is_finished = self._run(claim)
            outcome = "done" if is_finished else "abandoned"
        except Exception:
            log.exception("chunk failed chunk_id=%s", claim.chunk_id)
        finally:
            self._meters.count(CHUNKS_ENDED, outcome)
            self._slots.close(Priority(claim.priority), claim.tenant_id)
            self._open.discard((claim.chunk_id, claim.fence))
            # Otherwise something is wrong or the worker drains, so claim no sooner; unless a hint waited for this slot.
            if is_finished or not self._hints.empty():
                self._wake.set()
