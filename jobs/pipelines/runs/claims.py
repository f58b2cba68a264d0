"""Claims on runs: which control worker advances one, and until when; as those on batches in `jobs.batches.claims`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.batches.claimed_work import ClaimedWork
from jobs.chunks.used_caps import CAP_IS_REACHED
from jobs.database import transaction
from jobs.errors import FencedOutError, ServiceError, TokenmillError
from jobs.ids import new_id
from jobs.pipelines.lifecycle import lock_run
from jobs.settings import Settings
from jobs.tables import Run, Schedule

_DUE_A_TENANT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RunClaim:
    """A run that one worker is at."""

    run_id: str
    worker_id: str
    fence: int
    """Good for this claim only: the next one has a higher number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRun:
    """A run that a control worker may go on with."""

    run_id: str
    tenant_id: str


class StoppingError(TokenmillError):
    """This worker is to end: the run is given up where it is, and another worker goes on with it."""


class RunWork(ClaimedWork):
    """What is done under one claim. Each method that needs the claim raises FencedOutError where it is over."""

    def __init__(
        self,
        maker: sessionmaker[Session],
        claim: RunClaim,
        *,
        hold_sessions: sessionmaker[Session],
        settings: Settings,
        is_stopping: Callable[[], bool] = lambda: False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(maker, claim.run_id, hold_sessions=hold_sessions, settings=settings, monotonic=monotonic)
        self.claim = claim
        self._is_stopping = is_stopping

    def check(self) -> None:
        """Do what the base does. Raises StoppingError where this worker is to end: each effect can be done again."""
        super().check()
        if self._is_stopping():
            raise StoppingError(f"run {self.claim.run_id} is given up: this worker is to end")

    @contextmanager
    def writing(self) -> Iterator[tuple[Session, Run]]:
        """Open a short transaction with the run, fresh, locked and still claimed, and its schedule locked before it."""
        with self.reading() as session:
            of_run = text("SELECT schedule_id FROM run WHERE id = :run_id")
            schedule_id = session.scalar(of_run, {"run_id": self.claim.run_id})
            if schedule_id is not None:
                session.get(Schedule, schedule_id, with_for_update={"key_share": True}, populate_existing=True)
            run = lock_run(session, self.claim.run_id)
            if run is None or (run.claim_fence, run.claimed_by) != (self.claim.fence, self.claim.worker_id):
                raise self.over()
            yield session, run

    def confirm(self) -> None:
        """Ask the database whether the claim holds: before what no transaction can take back."""
        with self.reading() as session:
            if session.execute(_CONFIRM, _values(self.claim)).one_or_none() is None:
                raise self.over()

    def renew(self, session: Session) -> None:
        values = _values(self.claim) | {"lease": self._settings.lease}
        if session.execute(_RENEW, values).one_or_none() is None:
            raise self.over()

    def over(self) -> FencedOutError:
        return FencedOutError(f"run {self.claim.run_id} is no longer claimed under fence {self.claim.fence}")


def due_runs(session: Session) -> Sequence[DueRun]:
    """Return runs that somebody can go on with, of each tenant a few, those first that wait longest."""
    rows = session.execute(_DUE, {"limit": _DUE_A_TENANT})
    return [DueRun(run_id=row.id, tenant_id=row.tenant_id) for row in rows]


def claim_run(session: Session, run_id: str, *, lease: timedelta) -> RunClaim | None:
    """Take a run that is under way and that nobody has, or None."""
    worker_id = new_id("control")
    row = session.execute(_CLAIM, {"run_id": run_id, "worker_id": worker_id, "lease": lease}).one_or_none()
    return None if row is None else RunClaim(run_id=run_id, worker_id=worker_id, fence=row.claim_fence)


def work_on(
    maker: sessionmaker[Session],
    run_id: str,
    work: Callable[[RunWork], None],
    *,
    settings: Settings,
    hold_sessions: sessionmaker[Session] | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> bool:
    """Claim a run, do `work` on it and give it up; False where another worker has it, or this one is to end."""
    if is_stopping():
        return False
    with transaction(maker) as session:
        claim = claim_run(session, run_id, lease=settings.lease)
    if claim is None:
        return False
    mine = RunWork(maker, claim, hold_sessions=hold_sessions or maker, settings=settings, is_stopping=is_stopping)
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


def _give_up(maker: sessionmaker[Session], claim: RunClaim) -> None:
    with suppress(ServiceError), transaction(maker) as session:  # else it ends by itself
        session.execute(_GIVE_UP, _values(claim))


def _values(claim: RunClaim) -> dict[str, object]:
    return {"run_id": claim.run_id, "worker_id": claim.worker_id, "fence": claim.fence}


_UNCLAIMED = "(claimed_until IS NULL OR claimed_until <= clock_timestamp())"

# A run that waits for its batch is due again when that has ended, or can use no more of what the run has; one that is
# cancelled has its batch cancelled first.
_DUE = text(f"""
    SELECT id, tenant_id FROM (
        SELECT id, tenant_id, created_at, row_number() OVER (PARTITION BY tenant_id ORDER BY created_at, id) AS number
        FROM run
        WHERE state IN ('running', 'cancelling') AND {_UNCLAIMED} AND (look_at IS NULL OR look_at <= clock_timestamp())
            AND NOT EXISTS (
                SELECT FROM run_step JOIN batch ON batch.id = run_step.batch_id
                WHERE run_step.run_id = run.id AND run_step.done_at IS NULL AND (
                    batch.state IN ('finalizing', 'cancelling')
                    OR (
                        batch.state IN ('validating', 'in_progress') AND run.state = 'running'
                        AND NOT {CAP_IS_REACHED}
                    )
                )
            )
    ) AS due WHERE number <= :limit ORDER BY created_at, id
""")

_CLAIM = text(f"""
    UPDATE run SET claim_fence = claim_fence + 1, claimed_by = :worker_id,
        claimed_until = clock_timestamp() + CAST(:lease AS interval)
    WHERE id = (
        SELECT id FROM run WHERE id = :run_id AND state IN ('running', 'cancelling') AND {_UNCLAIMED}
        FOR NO KEY UPDATE SKIP LOCKED
    )
    RETURNING claim_fence
""")

_IS_MINE = "id = :run_id AND claim_fence = :fence AND claimed_by = :worker_id"

_RENEW = text(f"""
    UPDATE run SET claimed_until = clock_timestamp() + CAST(:lease AS interval) WHERE {_IS_MINE} RETURNING id
""")

_CONFIRM = text(f"SELECT id FROM run WHERE {_IS_MINE} AND claimed_until > clock_timestamp()")

_GIVE_UP = text(f"UPDATE run SET claimed_by = NULL, claimed_until = NULL WHERE {_IS_MINE}")
