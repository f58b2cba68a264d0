"""Claims on batches: which control worker validates one or writes its files, and until when.

Such work is a row of short transactions, each under the claim; the object store is asked between them. A claim ends
when its batch moves on, when it is given up, or on the database's clock: then another worker begins anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.batches.claimed_work import ClaimedWork
from jobs.batches.lifecycle import lock_batch
from jobs.database import transaction
from jobs.errors import FencedOutError, ServiceError
from jobs.ids import new_id
from jobs.settings import Settings
from jobs.states import BatchState
from jobs.tables import Batch

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchClaim:
    """A batch that one worker is at."""

    batch_id: str
    state: BatchState
    """In which it was claimed; in another one the claim is over."""
    worker_id: str
    fence: int
    """Good for this claim only: the next one has a higher number."""


class BatchWork(ClaimedWork):
    """What is done under one claim. Each method that needs the claim raises FencedOutError where it is over."""

    def __init__(
        self,
        maker: sessionmaker[Session],
        claim: BatchClaim,
        *,
        hold_sessions: sessionmaker[Session],
        settings: Settings,
        monotonic: Callable[[], float],
    ) -> None:
        super().__init__(maker, claim.batch_id, hold_sessions=hold_sessions, settings=settings, monotonic=monotonic)
        self.claim = claim

    @contextmanager
    def writing(self) -> Iterator[tuple[Session, Batch]]:
        """Open a short transaction with the batch, fresh, locked and still claimed."""
        with self.reading() as session:
            yield session, lock_claimed(session, self.claim)

    def renew(self, session: Session) -> None:
        renew(session, self.claim, lease=self._settings.lease)

    def over(self) -> FencedOutError:
        return _over(self.claim)


def work_on(
    maker: sessionmaker[Session],
    batch_id: str,
    states: Collection[BatchState],
    work: Callable[[BatchWork], T | None],
    *,
    settings: Settings,
    hold_sessions: sessionmaker[Session] | None = None,
) -> T | None:
    """Claim a batch in one of these states and do `work` on it, which moves the batch on or returns None.

    None too where another worker has the batch, or it left its state meanwhile. What `work` raises gives the claim up.
    With `hold_sessions`, on connections of their own, the claim is renewed however long the work waits for one.
    """
    with transaction(maker) as session:
        claim = claim_batch(session, batch_id, states, lease=settings.lease)
    if claim is None:
        return None
    held = maker if hold_sessions is None else hold_sessions
    mine = BatchWork(maker, claim, hold_sessions=held, settings=settings, monotonic=time.monotonic)
    done: T | None = None
    try:
        with mine.renewed():
            done = work(mine)
    except FencedOutError as error:
        log.info("claim ended early batch_id=%s reason=%s", batch_id, error)
        return None
    except Exception:
        _give_up(maker, claim)
        raise
    if done is None:
        _give_up(maker, claim)
    return done


def claim_batch(
    session: Session, batch_id: str, states: Collection[BatchState], *, lease: timedelta
) -> BatchClaim | None:
    """Take a batch that nobody has, or None."""
    worker_id = new_id("control")
    values = {"batch_id": batch_id, "states": [state.value for state in states], "worker_id": worker_id, "lease": lease}
    row = session.execute(_CLAIM, values).one_or_none()
    if row is None:
        return None
    return BatchClaim(batch_id=batch_id, state=BatchState(row.state), worker_id=worker_id, fence=row.claim_fence)


def renew(session: Session, claim: BatchClaim, *, lease: timedelta) -> None:
    """Let a claim last for `lease` from now on. Raises FencedOutError."""
    if session.execute(_RENEW, _values(claim) | {"lease": lease}).one_or_none() is None:
        raise _over(claim)


def lock_claimed(session: Session, claim: BatchClaim) -> Batch:
    """Return the batch of a claim, fresh and locked until the transaction ends. Raises FencedOutError."""
    batch = lock_batch(session, claim.batch_id)
    held = None if batch is None else (batch.claim_fence, batch.claimed_by, batch.state)
    if batch is None or held != (claim.fence, claim.worker_id, claim.state):
        raise _over(claim)
    return batch


def _give_up(maker: sessionmaker[Session], claim: BatchClaim) -> None:
    with suppress(ServiceError), transaction(maker) as session:  # else it ends by itself
        session.execute(_GIVE_UP, _values(claim))


def _values(claim: BatchClaim) -> dict[str, object]:
    return {
        "batch_id": claim.batch_id,
        "worker_id": claim.worker_id,
        "fence": claim.fence,
        "state": claim.state.value,
    }


def _over(claim: BatchClaim) -> FencedOutError:
    return FencedOutError(
        f"batch {claim.batch_id} is no longer claimed under fence {claim.fence} by {claim.worker_id}, or {claim.state}"
    )


# SKIP LOCKED: whoever holds the batch just now is at it, or moves it.
_CLAIM = text("""
    UPDATE batch SET claim_fence = claim_fence + 1, claimed_by = :worker_id,
        claimed_until = clock_timestamp() + CAST(:lease AS interval)
    WHERE id = (
        SELECT id FROM batch
        WHERE id = :batch_id AND state = ANY(CAST(:states AS text[]))
            AND (claimed_until IS NULL OR claimed_until <= clock_timestamp())
        FOR NO KEY UPDATE SKIP LOCKED
    )
    RETURNING claim_fence, state
""")

_IS_MINE = "id = :batch_id AND claim_fence = :fence AND claimed_by = :worker_id AND state = :state"

_RENEW = text(f"""
    UPDATE batch SET claimed_until = clock_timestamp() + CAST(:lease AS interval) WHERE {_IS_MINE} RETURNING id
""")

_GIVE_UP = text(f"UPDATE batch SET claimed_by = NULL, claimed_until = NULL WHERE {_IS_MINE}")
