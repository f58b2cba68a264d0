"""Advance a graph of batches as far as possible; retry what is temporary, and fail it where that persists.

Each effect is one transaction under the graph's claim, or repeatable: a worker may be killed at any moment.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from jobs.batches import lifecycle as batches
from jobs.claims.claims import Claims
from jobs.claims.work import CancelHeardError, ClaimedWork, StoppingError, work_on
from jobs.errors import ConflictError, FencedOutError, InputError, LimitError, RateLimitError, ServiceError
from jobs.graphs.reasons import note_reason
from jobs.settings import Settings
from jobs.states import CANCELLING, TERMINAL_BATCH_STATES, BatchState
from jobs.tables import Batch
from jobs.tables.courses import GraphRow

log = logging.getLogger(__name__)

Graph = TypeVar("Graph", bound=GraphRow)

_MAX_TRIES = 6
_FIRST_PAUSE = timedelta(seconds=5)  # doubled at each try: two and a half minutes in total
_FIRST_ROOM_PAUSE = timedelta(seconds=30)  # batches end at any time,
_MAX_ROOM_PAUSE = timedelta(minutes=10)  # and an attempt may read a whole source, and write a batch's lines again
_UNEXPECTED = "an unexpected error; it is in the log of the control workers; report the {kind}'s id to your operator"


class Advancer(ABC, Generic[Graph]):
    """A control worker's handling of one kind of graph."""

    def __init__(
        self,
        claims: Claims[Graph],
        sessions: sessionmaker[Session],
        settings: Settings,
        *,
        hold_sessions: sessionmaker[Session] | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_stopping` is polled between effects, occasionally within one: graphs are then released as they are."""
        self._claims = claims
        self._sessions = sessions
        self._settings = settings
        self._hold_sessions = hold_sessions
        self._is_stopping = is_stopping

    @abstractmethod
    def _go_on(self, work: ClaimedWork[Graph]) -> bool:
        """Do the next step; False where there is none (yet)."""

    @abstractmethod
    def _cancel(self, session: Session, graph: Graph, *, reason: str) -> None:
        """Start cancelling a locked graph that is under way."""

    @abstractmethod
    def _end(self, session: Session, graph: Graph, *, is_cancelled: bool) -> None:
        """End a locked graph, as cancelled or as failed."""

    @abstractmethod
    def _note_code(self, graph: Graph, code: str) -> None:
        """Record the error code of a locked graph, where its kind shows one."""

    @abstractmethod
    def _came_to_it(self, session: Session, graph: Graph) -> datetime:
        """Return when a locked graph reached its current step."""

    @abstractmethod
    def _waits_until(self, session: Session, graph: Graph) -> datetime:
        """Return until when a locked graph may wait for its tenant's limits."""

    def advance(self, graph_id: str) -> bool:
        """Advance a graph as far as possible now; False where another worker has it."""
        done = work_on(
            self._sessions,
            self._claims,
            graph_id,
            self._advance,
            settings=self._settings,
            hold_sessions=self._hold_sessions,
            is_stopping=self._is_stopping,
            hears_cancel=True,
        )
        return done is not None

    def _advance(self, work: ClaimedWork[Graph]) -> bool:
        with suppress(CancelHeardError):
            return self._advance_or_wait(work)
        return self._advance_or_wait(work)  # to its end: the cancel is raised once

    def _advance_or_wait(self, work: ClaimedWork[Graph]) -> bool:
        try:
            self._go_on_or_fail(work)
        except ServiceError as error:
            self._try_again_later(work, str(error))
        except (CancelHeardError, FencedOutError, StoppingError):
            raise
        except Exception:
            # A defect of ours, or of our input: it counts as a try, or the graph would start over for ever.
            log.exception("work failed kind=%s id=%s", self._claims.kind, work.claim.id)
            self._try_again_later(work, _UNEXPECTED.format(kind=self._claims.kind))
        return True

    def _go_on_or_fail(self, work: ClaimedWork[Graph]) -> None:
        try:
            while self._go_on(work):
                pass
        except (LimitError, RateLimitError) as error:
            self._wait_for_room(work, str(error))
        except InputError as error:
            with work.writing() as (session, graph):
                if graph.state != CANCELLING:
                    note_reason(graph, error.message)
                    self._note_code(graph, error.code)
                self._end_early(session, graph)

    def _wait_for_room(self, work: ClaimedWork[Graph], reason: str) -> None:
        """Record which limit is reached, and retry later, until the graph's time is over.

        This does not count as a try, as its work so far would be wasted. Each pause is as long as the wait so far.
        """
        with work.writing() as (session, graph):
            note_reason(graph, reason)
            now = session.scalar(select(func.clock_timestamp()))
            assert now is not None
            until = self._waits_until(session, graph)
            if now >= until:
                self._end_early(session, graph)
                return
            waited = now - self._came_to_it(session, graph)
            graph.look_at = min(now + min(max(waited, _FIRST_ROOM_PAUSE), _MAX_ROOM_PAUSE), until)
        log.info("work waits for room kind=%s id=%s", self._claims.kind, work.claim.id)

    def _try_again_later(self, work: ClaimedWork[Graph], reason: str) -> None:
        """Record a temporary problem, or fail the graph where it has persisted."""
        # Counted in its own transaction: if ending the graph is what fails, it still waits for its next try.
        with work.writing() as (session, graph):
            graph.num_tries += 1
            num_tries = graph.num_tries
            note_reason(graph, reason)
            pause = _FIRST_PAUSE * 2 ** min(num_tries - 1, _MAX_TRIES)
            graph.look_at = session.scalar(select(func.clock_timestamp() + pause))
        kind = self._claims.kind
        log.warning("work waits kind=%s id=%s tries=%d reason=%s", kind, work.claim.id, num_tries, reason)
        if num_tries >= _MAX_TRIES:
            with work.writing() as (session, graph):
                self._end_early(session, graph)

    def _end_early(self, session: Session, graph: Graph) -> None:
        self._end(session, graph, is_cancelled=graph.state == CANCELLING)

    def _stop(self, work: ClaimedWork[Graph], batch: Batch | None) -> None:
        """Cancel the batch that a graph waits for, or end the graph where there is none."""
        with work.writing() as (session, graph):
            if graph.state != CANCELLING:
                self._cancel(session, graph, reason="its tenant was deleted")
            if batch is None or BatchState(batch.state) in TERMINAL_BATCH_STATES:
                self._end_early(session, graph)
                return
            with suppress(ConflictError):  # it has just ended
                batches.cancel_batch(session, graph.tenant_id, batch.id)
