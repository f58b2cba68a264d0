"""Advance a flow as far as possible; retry what is temporary, and fail it where that persists.

Each effect is one transaction under the flow's claim, or repeatable: a worker may be killed at any moment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Generic

from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from flows.reasons import note_reason
from flows.recipe import EndEarlyError, FlowRow, Recipe
from flows.standing import AnyStanding
from flows.states import CLAIMABLE_STATES
from flows.tables import Flow
from jobs.batches import lifecycle as batches
from jobs.claims.claims import Claims
from jobs.claims.work import CancelHeardError, ClaimedWork, StoppingError, work_on
from jobs.errors import ConflictError, FencedOutError, InputError, LimitError, RateLimitError, ServiceError
from jobs.settings import Settings
from jobs.states import CANCELLING

log = logging.getLogger(__name__)

_MAX_TRIES = 6
_FIRST_PAUSE = timedelta(seconds=5)  # doubled at each try: two and a half minutes in total
_FIRST_ROOM_PAUSE = timedelta(seconds=30)  # batches end at any time,
_MAX_ROOM_PAUSE = timedelta(minutes=10)  # and an attempt may read a whole source, and write a batch's lines again
_UNEXPECTED = "an unexpected error; it is in the log of the control workers; report the {kind}'s id to your operator"


class FlowAdvancer(Generic[FlowRow, AnyStanding]):
    """A control worker's handling of the flows of one recipe."""

    def __init__(
        self,
        recipe: Recipe[FlowRow, AnyStanding],
        sessions: sessionmaker[Session],
        settings: Settings,
        *,
        hold_sessions: sessionmaker[Session] | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """`hold_sessions` as for `ClaimedWork`.

        `is_stopping` is polled between effects, occasionally within one: flows are then released as they are.
        """
        self._recipe = recipe
        self._claims: Claims[FlowRow] = Claims(Flow, CLAIMABLE_STATES, lock=recipe.lock)  # type: ignore[arg-type]
        self._sessions = sessions
        self._settings = settings
        self._hold_sessions = hold_sessions
        self._is_stopping = is_stopping

    def advance(self, flow_id: str) -> bool:
        """Advance a flow as far as possible now; False where another worker has it."""
        done = work_on(
            self._sessions,
            self._claims,
            flow_id,
            self._advance,
            settings=self._settings,
            hold_sessions=self._hold_sessions,
            is_stopping=self._is_stopping,
            hears_cancel=True,
        )
        return done is not None

    def _advance(self, work: ClaimedWork[FlowRow]) -> bool:
        with suppress(CancelHeardError):
            return self._advance_or_wait(work)
        return self._advance_or_wait(work)  # to its end: the cancel is raised once

    def _advance_or_wait(self, work: ClaimedWork[FlowRow]) -> bool:
        try:
            self._go_on_or_fail(work)
        except ServiceError as error:
            self._try_again_later(work, str(error), may_fail=not self._recipe.outlasts_services)
        except (CancelHeardError, FencedOutError, StoppingError):
            raise
        except Exception:
            # A defect of ours, or of our input: it counts as a try, or the flow would start over for ever.
            log.exception("work failed kind=%s id=%s", self._recipe.name, work.claim.id)
            self._try_again_later(work, _UNEXPECTED.format(kind=self._recipe.name))
        return True

    def _go_on_or_fail(self, work: ClaimedWork[FlowRow]) -> None:
        try:
            while self._go_on(work):
                pass
        except (LimitError, RateLimitError) as error:
            self._wait_for_room(work, str(error))
        except InputError as error:
            with work.writing() as (session, flow):
                if flow.state != CANCELLING:
                    note_reason(flow, error.message)
                    self._recipe.note_code(flow, error.code)
                self._end_early(session, flow)

    def _go_on(self, work: ClaimedWork[FlowRow]) -> bool:
        """Do the next step; False where there is none (yet)."""
        with work.reading() as session:
            standing = self._recipe.look(session, work.claim.id)
        if standing.is_over:
            return False
        if standing.is_stopped:
            self._stop(work, standing)
            return False
        if self._recipe.act(work, standing):
            return not work.is_released
        return not standing.open_nodes and self._begin_next(work, standing)

    def _begin_next(self, work: ClaimedWork[FlowRow], standing: AnyStanding) -> bool:
        reason = None
        try:
            if any(self._recipe.begin(work, standing, name) for name in self._recipe.next_nodes(standing)):
                return not work.is_released
        except EndEarlyError as error:
            reason = error.message
        self._recipe.complete(work, standing, reason=reason)
        return False

    def _stop(self, work: ClaimedWork[FlowRow], standing: AnyStanding) -> None:
        """Cancel the batches that a flow waits for, or end it where there is none."""
        with work.writing() as (session, flow):
            if flow.state != CANCELLING:
                self._recipe.cancel(session, flow, reason="its tenant was deleted")
            if not standing.running:
                self._end_early(session, flow)
            for batch in standing.running:
                with suppress(ConflictError):  # it has just ended
                    batches.cancel_batch(session, flow.tenant_id, batch.id)

    def _wait_for_room(self, work: ClaimedWork[FlowRow], reason: str) -> None:
        """Record which limit is reached, and retry later, until the flow's time is over.

        This does not count as a try, as its work so far would be wasted. Each pause is as long as the wait so far.
        """
        with work.writing() as (session, flow):
            note_reason(flow, reason)
            now = session.scalar(select(func.clock_timestamp()))
            assert now is not None
            standing = self._recipe.look(session, flow.id)
            until = self._recipe.waits_until(standing)
            if now >= until:
                self._end_early(session, flow)
                return
            waited = now - standing.reached_at(self._recipe.began_at(standing))
            # While its own batches run, they make the room.
            pause = _FIRST_ROOM_PAUSE if standing.running else min(max(waited, _FIRST_ROOM_PAUSE), _MAX_ROOM_PAUSE)
            flow.look_at = min(now + pause, until)
        log.info("work waits for room kind=%s id=%s", self._recipe.name, work.claim.id)

    def _try_again_later(self, work: ClaimedWork[FlowRow], reason: str, *, may_fail: bool = True) -> None:
        """Record a temporary problem, or fail the flow where it has persisted."""
        # Counted in its own transaction: if ending the flow is what fails, it still waits for its next try.
        with work.writing() as (session, flow):
            flow.num_tries += 1
            num_tries = flow.num_tries
            note_reason(flow, reason)
            pause = _FIRST_PAUSE * 2 ** min(num_tries - 1, _MAX_TRIES)
            flow.look_at = session.scalar(select(func.clock_timestamp() + pause))
        kind = self._recipe.name
        log.warning("work waits kind=%s id=%s tries=%d reason=%s", kind, work.claim.id, num_tries, reason)
        if may_fail and num_tries >= _MAX_TRIES:
            with work.writing() as (session, flow):
                self._end_early(session, flow)

    def _end_early(self, session: Session, flow: FlowRow) -> None:
        self._recipe.end_early(session, flow, is_cancelled=flow.state == CANCELLING)
