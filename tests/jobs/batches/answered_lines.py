"""Lines of batches that are claimed, answered and flushed without a worker."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy.orm import Session

from jobs.batches import sweeps
from jobs.chunks import claiming, leasing
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.recording import LineResult
from jobs.lines.output_lines import error_line, output_line
from jobs.tables import Batch

LEASE = timedelta(seconds=20)


def claim_all(session: Session) -> list[ClaimedChunk]:
    claims = []
    while claim := claiming.claim_next(session, model="m", worker_id="w1", lease=LEASE):
        claims.append(claim)
    session.commit()
    return claims


def answer(batch_id: str, line_no: int, *, padding: str = "") -> LineResult:
    line = output_line(batch_id, line_no, f"a{line_no}", status_code=200, body={"padding": padding})
    return LineResult(line_no=line_no, line=line, status_code=200, input_tokens=5, output_tokens=3)


def failure(batch_id: str, line_no: int) -> LineResult:
    line = error_line(batch_id, line_no, f"a{line_no}", code="engine_failure", message="no")
    return LineResult(line_no=line_no, line=line, status_code=None)


def flush(session: Session, claim: ClaimedChunk, results: list[LineResult], *, flush_no: int = 0) -> None:
    leasing.flush(session, claim, results, flush_no=flush_no, lease=LEASE)
    session.commit()


def run_to_end(
    session: Session,
    batch: Batch,
    *,
    failing: frozenset[int] = frozenset(),
    blank: frozenset[int] = frozenset(),
    padding: str = "",
) -> None:
    """Answer every line, the last chunk first, and move the batch to finalizing."""
    for claim in reversed(claim_all(session)):
        todo = (
            set(range(claim.first_line, claim.first_line + claim.num_lines))
            - leasing.lines_done(session, claim)
            - blank
        )
        make = [
            failure(batch.id, line) if line in failing else answer(batch.id, line, padding=padding)
            for line in sorted(todo)
        ]
        flush(session, claim, make)
        leasing.complete(session, claim)
    sweeps.finish_ready(session)
    session.commit()
