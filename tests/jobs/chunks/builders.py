"""Chunks claimed, answered, flushed and lost by tests, and the sums that must agree about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta

from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session

from jobs.batches.lost_leases import Reaped, reap_expired, reap_suspects
from jobs.chunks import claiming, leasing
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.recording import LineResult
from jobs.database import sessions
from jobs.lines.output_lines import output_line
from jobs.storage import Storage
from jobs.tables import Batch, Chunk

Run = Callable[..., Batch]
LEASE = timedelta(seconds=20)
ENDED = timedelta(0)  # `end_lease` only moves the end: the servers of tests are younger than a lease


def chunk_ids(session: Session, batch: Batch) -> list[int]:
    return list(session.scalars(select(Chunk.id).where(Chunk.batch_id == batch.id).order_by(Chunk.id)))


def states(session: Session, batch: Batch) -> list[str]:
    return list(session.scalars(select(Chunk.state).where(Chunk.batch_id == batch.id).order_by(Chunk.id)))


def claim_one(session: Session, chunk_id: int, worker_id: str = "w1") -> ClaimedChunk:
    claim = claiming.claim_chunk(session, chunk_id, worker_id=worker_id, lease=LEASE)
    session.commit()
    assert claim is not None
    return claim


def claim_first(session: Session, batch: Batch, worker_id: str = "w1") -> ClaimedChunk:
    return claim_one(session, chunk_ids(session, batch)[0], worker_id)


def answer(claim: ClaimedChunk, line_no: int, *, input_tokens: int = 5, output_tokens: int = 3) -> LineResult:
    line = output_line(claim.batch_id, line_no, f"a{line_no}", status_code=200, body={})
    return LineResult(
        line_no=line_no,
        line=line,
        status_code=200,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=1,
        reasoning_tokens=2,
    )


def answers(claim: ClaimedChunk, line_nos: Iterable[int]) -> list[LineResult]:
    return [answer(claim, line_no) for line_no in line_nos]


def flush(session: Session, claim: ClaimedChunk, line_nos: Iterable[int], *, flush_no: int = 0) -> leasing.FlushOutcome:
    outcome = leasing.flush(session, claim, answers(claim, line_nos), flush_no=flush_no, lease=LEASE)
    session.commit()
    return outcome


def end_lease(session: Session, claim: ClaimedChunk) -> None:
    """Advance time by one lease, without sleeping."""
    session.execute(
        text(
            "UPDATE chunk SET lease_until = clock_timestamp() - interval '1 second' WHERE id = :id AND state = 'leased'"
        ),
        {"id": claim.chunk_id},
    )
    session.commit()


def lose(session: Session, storage: Storage, claim: ClaimedChunk) -> list[Reaped]:
    """Let a lease end while an engine runs the chunk's lines."""
    leasing.start(session, claim)
    end_lease(session, claim)
    return reap(session, storage)


def reap(session: Session, storage: Storage, *, lease: timedelta = ENDED) -> list[Reaped]:
    """Do both halves of a dispatcher's handling of lost leases."""
    reaped = reap_expired(session, lease=lease)
    session.commit()
    engine = session.get_bind()
    assert isinstance(engine, Engine)
    return reaped + reap_suspects(sessions(engine), storage, lease=lease)


def totals(session: Session, batch: Batch) -> dict[str, int]:
    """Return what results, ledger, batch and budget say about the same tokens."""
    session.refresh(batch)
    query = text("""
        SELECT (SELECT count(*) FROM result WHERE batch_id = :id) AS results,
            (SELECT coalesce(sum(input_tokens + output_tokens), 0) FROM result WHERE batch_id = :id) AS result_tokens,
            (SELECT coalesce(sum(input_tokens + output_tokens), 0) FROM ledger WHERE batch_id = :id) AS ledger_tokens,
            (SELECT spent_tokens FROM budget WHERE tenant_id = :tenant_id) AS spent
    """)
    row = session.execute(query, {"id": batch.id, "tenant_id": batch.tenant_id}).one()
    return {name: int(value) for name, value in row._mapping.items()} | {
        "counted": batch.num_completed + batch.num_failed,
        "batch_tokens": batch.input_tokens + batch.output_tokens,
    }


def expected(num_results: int, *, tokens: int) -> dict[str, int]:
    money = dict.fromkeys(("result_tokens", "ledger_tokens", "spent", "batch_tokens"), tokens)
    return money | {"results": num_results, "counted": num_results}
