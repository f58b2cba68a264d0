"""Claims on extractions: which control worker advances one, and until when; as those on runs of pipelines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.batches.claimed_work import ClaimedWork
from jobs.database import transaction
from jobs.errors import FencedOutError, ServiceError, TokenmillError
from jobs.extractions.lifecycle import lock_extraction
from jobs.ids import new_id
from jobs.settings import Settings
from jobs.tables import Extraction

_DUE_A_TENANT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionClaim:
    """An extraction that one worker is at."""

    extraction_id: str
    worker_id: str
    fence: int
    """Good for this claim only: the next one has a higher number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueExtraction:
    """An extraction that a control worker may go on with."""

    extraction_id: str
    tenant_id: str


class StoppingError(TokenmillError):
    """This worker is to end: the extraction is given up where it is, and another worker goes on with it."""


class ExtractionWork(ClaimedWork):
    """What is done under one claim. Each method that needs the claim raises FencedOutError where it is over."""

    def __init__(
        self,
        maker: sessionmaker[Session],
        claim: ExtractionClaim,
        *,
        hold_sessions: sessionmaker[Session],
        settings: Settings,
        is_stopping: Callable[[], bool] = lambda: False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            maker, claim.extraction_id, hold_sessions=hold_sessions, settings=settings, monotonic=monotonic
        )
        self.claim = claim
        self._is_stopping = is_stopping

    def check(self) -> None:
        """Do what the base does. Raises StoppingError where this worker is to end: each effect can be done again."""
        super().check()
        if self._is_stopping():
            raise StoppingError(f"extraction {self.claim.extraction_id} is given up: this worker is to end")

    @contextmanager
    def writing(self) -> Iterator[tuple[Session, Extraction]]:
        """Open a short transaction with the extraction, fresh, locked and still claimed."""
        with self.reading() as session:
            found = lock_extraction(session, self.claim.extraction_id)
            if found is None or (found.claim_fence, found.claimed_by) != (self.claim.fence, self.claim.worker_id):
                raise self.over()
            yield session, found

    def renew(self, session: Session) -> None:
        values = _values(self.claim) | {"lease": self._settings.lease}
        if session.execute(_RENEW, values).one_or_none() is None:
            raise self.over()

    def over(self) -> FencedOutError:
        claim = self.claim
        return FencedOutError(f"extraction {claim.extraction_id} is no longer claimed under fence {claim.fence}")


def due_extractions(session: Session) -> Sequence[DueExtraction]:
    """Return extractions that somebody can go on with, of each tenant a few, those first that wait longest."""
    rows = session.execute(_DUE, {"limit": _DUE_A_TENANT})
    return [DueExtraction(extraction_id=row.id, tenant_id=row.tenant_id) for row in rows]


def claim_extraction(session: Session, extraction_id: str, *, lease: timedelta) -> ExtractionClaim | None:
    """Take an extraction that is under way and that nobody has, or None."""
    worker_id = new_id("control")
    values = {"id": extraction_id, "worker_id": worker_id, "lease": lease}
    row = session.execute(_CLAIM, values).one_or_none()
    if row is None:
        return None
    return ExtractionClaim(extraction_id=extraction_id, worker_id=worker_id, fence=row.claim_fence)


def work_on(
    maker: sessionmaker[Session],
    extraction_id: str,
    work: Callable[[ExtractionWork], None],
    *,
    settings: Settings,
    hold_sessions: sessionmaker[Session] | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> bool:
    """Claim an extraction, do `work` on it and give it up; False where another has it, or this one is to end."""
    if is_stopping():
        return False
    with transaction(maker) as session:
        claim = claim_extraction(session, extraction_id, lease=settings.lease)
    if claim is None:
        return False
    mine = ExtractionWork(
        maker, claim, hold_sessions=hold_sessions or maker, settings=settings, is_stopping=is_stopping
    )
    try:
        with mine.renewed():
            work(mine)
    except FencedOutError:
        return False
    except StoppingError:
        _give_up(maker, claim)
        return False
    except Exception:
        _give_up(maker, claim)
        raise
    _give_up(maker, claim)
    return True


def _give_up(maker: sessionmaker[Session], claim: ExtractionClaim) -> None:
    with suppress(ServiceError), transaction(maker) as session:  # else it ends by itself
        session.execute(_GIVE_UP, _values(claim))


def _values(claim: ExtractionClaim) -> dict[str, object]:
    return {"id": claim.extraction_id, "worker_id": claim.worker_id, "fence": claim.fence}


_IS_OPEN = "state IN ('in_progress', 'cancelling')"
_UNCLAIMED = "(claimed_until IS NULL OR claimed_until <= clock_timestamp())"

# One that waits for its batch is due again when that has ended; one that is cancelled has its batch cancelled first.
_DUE = text(f"""
    SELECT id, tenant_id FROM (
        SELECT id, tenant_id, created_at, row_number() OVER (PARTITION BY tenant_id ORDER BY created_at, id) AS number
        FROM extraction
        WHERE {_IS_OPEN} AND {_UNCLAIMED} AND (look_at IS NULL OR look_at <= clock_timestamp())
            AND NOT EXISTS (
                SELECT FROM extraction_stage AS stage JOIN batch ON batch.id = stage.batch_id
                WHERE stage.extraction_id = extraction.id AND stage.done_at IS NULL AND (
                    batch.state IN ('finalizing', 'cancelling')
                    OR (batch.state IN ('validating', 'in_progress') AND extraction.state = 'in_progress')
                )
            )
    ) AS due WHERE number <= :limit ORDER BY created_at, id
""")

_CLAIM = text(f"""
    UPDATE extraction SET claim_fence = claim_fence + 1, claimed_by = :worker_id,
        claimed_until = clock_timestamp() + CAST(:lease AS interval)
    WHERE id = (
        SELECT id FROM extraction WHERE id = :id AND {_IS_OPEN} AND {_UNCLAIMED} FOR NO KEY UPDATE SKIP LOCKED
    )
    RETURNING claim_fence
""")

_IS_MINE = "id = :id AND claim_fence = :fence AND claimed_by = :worker_id"

_RENEW = text(f"""
    UPDATE extraction SET claimed_until = clock_timestamp() + CAST(:lease AS interval) WHERE {_IS_MINE} RETURNING id
""")

_GIVE_UP = text(f"UPDATE extraction SET claimed_by = NULL, claimed_until = NULL WHERE {_IS_MINE}")
