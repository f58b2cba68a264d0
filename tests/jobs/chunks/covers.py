"""Chunks of tenants with a limit, claimed, covered and answered by tests, and the tokens covered then."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from jobs.accounts import budgets
from jobs.batches.lost_leases import reap_expired
from jobs.chunks import claiming, leasing
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.recording import LineResult
from jobs.lines.output_lines import output_line
from jobs.tables import Batch, Chunk, Tenant

LEASE = timedelta(seconds=20)


def claim_next(session: Session) -> ClaimedChunk:
    claim = claiming.claim_next(session, model="m", worker_id="w", lease=LEASE)
    assert claim is not None
    session.commit()
    return claim


def answer(claim: ClaimedChunk, line_no: int, *, tokens: int) -> LineResult:
    line = output_line(claim.batch_id, line_no, f"a{line_no}", status_code=200, body={})
    return LineResult(line_no=line_no, line=line, status_code=200, input_tokens=tokens)


def flush(session: Session, claim: ClaimedChunk, used: dict[int, int], *, covered: int, flush_no: int = 0) -> None:
    results = [answer(claim, line_no, tokens=tokens) for line_no, tokens in used.items()]
    leasing.flush(session, claim, results, flush_no=flush_no, lease=LEASE, covered=covered)
    session.commit()


def covers(session: Session) -> tuple[int, int, int]:
    """Return the tokens that chunks cover, that batches cover, and that batches reserve."""
    session.commit()
    query = select(func.sum(Batch.covered_tokens), func.sum(Batch.reserved_tokens))
    covered, reserved = session.execute(query).one()
    return int(session.scalar(select(func.sum(Chunk.covered_tokens))) or 0), int(covered), int(reserved)


def states(session: Session) -> list[str]:
    return list(session.scalars(select(Chunk.state).order_by(Chunk.id)))


def end_lease(session: Session, claim: ClaimedChunk) -> None:
    session.execute(text("UPDATE chunk SET lease_until = clock_timestamp() WHERE id = :id"), {"id": claim.chunk_id})
    session.commit()


def limit(session: Session, tenant: Tenant, tokens: int | None) -> None:
    budgets.set_limit(session, tenant.id, tokens)
    session.commit()


def reap(session: Session) -> None:
    reap_expired(session, lease=timedelta(0))
