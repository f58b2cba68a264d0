"""Leased chunks: extend, flush, complete, give back, withdraw.

Their states are written here, in `claiming`, `lease_ends`, `waiting` and `deferring`.

A claim is good while the chunk is leased under its fence; every function that takes one raises FencedOutError when it
is not. Locks are taken in the order chunk → batch → fair share → decision → budget; whoever holds one
of a later place passes over chunks that are locked. The decisions on lost leases, which only those who end them lock,
come before the shares. Leases run on the database's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs import decisions
from jobs.accounts import budgets
from jobs.accounts.prices import Prices
from jobs.chunks.chunk_ref import ChunkRef
from jobs.chunks.lease_ends import leave, lock_batch_state
from jobs.chunks.leases import LEASES
from jobs.chunks.recording import COUNT, LineResult, Recorded, insert
from jobs.decisions import Kind
from jobs.errors import TokenmillError
from jobs.states import BatchState, ChunkState, Priority


class MissingResultsError(TokenmillError):
    """Our own invariant is broken: a chunk was called complete while lines of it have no result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedChunk(ChunkRef):
    """A chunk one worker owns, with what it needs to run it."""

    prices: Prices
    """The model's at the time of the claim, of the class in which the chunk runs."""
    weight: float
    """The tenant's at the time of the claim."""
    is_limited: bool
    """That some limit of the tenant held for the chunk at the time of the claim: lines must be covered before they run.

    For class overflow the tenant's token limit does not; what is prepared costs nothing, and no limit holds for it.
    """
    uncovered_lines: str
    """What the batch wants for those that are not."""
    trace_context: str | None = None
    """Of the request that created the batch, where it is traced."""
    hint_waited: timedelta | None = None
    """How long the hint that the claim followed had waited; None: it was the chunk's turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushOutcome:
    """What a flush or a heartbeat found."""

    num_inserted: int
    """Results that were not there before."""
    recorded: Recorded | None = None
    """What was inserted, by a flush."""
    batch_wanted: bool
    """False: cancelled or expired; abort what runs, flush what is finished, release the chunk."""


def start(session: Session, claim: ClaimedChunk) -> None:
    """Note that lines go to an engine from now on: only then does a lost lease say anything of them.

    Raises FencedOutError.
    """
    if session.execute(_START, claim.guard).one_or_none() is None:
        raise LEASES.over(claim)


def lines_done(session: Session, chunk: ChunkRef) -> set[int]:
    """Return the line numbers of the chunk that have a result: they are not run again."""
    values = {
        "day": chunk.batch_day,
        "batch_id": chunk.batch_id,
        "first": chunk.first_line,
        "end": chunk.first_line + chunk.num_lines,
    }
    return set(session.scalars(_DONE_LINES, values))


def flush(
    session: Session,
    claim: ClaimedChunk,
    results: Sequence[LineResult],
    *,
    flush_no: int,
    lease: timedelta,
    covered: int = 0,
    covered_picos: int = 0,
    worker_microseconds: int = 0,
    is_last: bool = False,
) -> FlushOutcome:
    """Extend the lease and store results, ledger entry, counters and budget, all in the caller's transaction.

    With `is_last` every line has its result now, and the chunk is complete with it where its batch is wanted.
    `covered` and `covered_picos` are the cover of the lines that still run; that of the others ends here.
    `worker_microseconds` are the chunk's share of its worker's time since its last flush.
    Repeat it as it is, `flush_no` included, when the outcome of a commit is unknown: what was inserted before is not
    inserted, counted or billed again. Other results need another `flush_no`. Raises FencedOutError, and with `is_last`
    MissingResultsError.
    """
    _check_lines(claim, results)
    held = {**claim.guard, "lease": lease, "covered": covered, "covered_picos": covered_picos}
    locked = session.execute(_EXTEND_AND_LOCK, held).one_or_none()
    if locked is None:
        raise LEASES.over(claim)
    recorded = insert(
        session,
        claim.batch_id,
        results,
        created_at=locked.created_at,
        num_before=locked.num_results,
        prices=claim.prices,
    )
    if recorded.num_results:
        entry = _ledger_entry(claim, recorded, flush_no) | {"worker_microseconds": worker_microseconds}
        session.execute(_COUNT_AND_BILL, entry)
    wanted = locked.state == BatchState.IN_PROGRESS
    uncovered = int(locked.uncovered)
    if is_last and wanted:
        complete(session, claim)  # before the budget: it locks the tenant's fair share, and reads the ledger for it
    if recorded.num_results or uncovered:
        budgets.settle(
            session,
            claim.batch_id,
            claim.tenant_id,
            recorded.input_tokens + recorded.output_tokens,
            picos=recorded.cost_picos,
            reading_microseconds=recorded.reading_microseconds,
            uncovered=uncovered,
            is_limited=claim.is_limited,
            is_overflow=claim.priority == Priority.OVERFLOW,
        )
    return FlushOutcome(num_inserted=recorded.num_results, recorded=recorded, batch_wanted=wanted)


def extend(session: Session, claim: ClaimedChunk, lease: timedelta) -> FlushOutcome:
    """Extend the lease without results: the heartbeat. Raises FencedOutError."""
    LEASES.renew(session, claim, lease=lease)
    state = session.scalar(text("SELECT state FROM batch WHERE id = :batch_id"), {"batch_id": claim.batch_id})
    return FlushOutcome(num_inserted=0, batch_wanted=state == BatchState.IN_PROGRESS)


def complete(session: Session, claim: ClaimedChunk) -> None:
    """End a chunk whose every request has a result. Raises FencedOutError and MissingResultsError."""
    leave(session, claim, ChunkState.DONE)
    num_done = len(lines_done(session, claim))
    if num_done != claim.num_requests:
        raise MissingResultsError(
            f"chunk {claim.chunk_id} of {claim.batch_id} has {num_done} results for {claim.num_requests} requests"
        )


def release(session: Session, claim: ClaimedChunk) -> None:
    """Give a chunk back without counting a lost lease; it is withdrawn where its batch is no longer wanted.

    Raises FencedOutError.
    """
    LEASES.hold(session, claim)
    _give_back(session, claim)
    decisions.note(session, claim.batch_id, Kind.GIVEN_BACK, subject=claim.worker_id)


def end_turn(session: Session, claim: ClaimedChunk, *, estimated_tokens: int) -> None:
    """Give back the rest of a chunk that has had its time, with an estimate of that rest: others may come first.

    It is withdrawn where its batch is no longer wanted. Raises FencedOutError.
    """
    LEASES.hold(session, claim)
    session.execute(_ESTIMATE, {"chunk_id": claim.chunk_id, "tokens": estimated_tokens})
    _give_back(session, claim)


def withdraw_open(session: Session, batch_id: str) -> int:
    """Withdraw a batch's ready, waiting and deferred chunks, when it is cancelled or expired; return how many.

    Lock and move the batch first. Leased chunks stay with their workers, who learn it at their next flush or
    heartbeat, store what is finished and release them.
    """
    return len(session.scalars(_WITHDRAW, {"batch_id": batch_id, "after": ChunkState.WITHDRAWN.value}).all())


def _check_lines(claim: ClaimedChunk, results: Sequence[LineResult]) -> None:
    lines = {result.line_no for result in results}
    allowed = range(claim.first_line, claim.first_line + claim.num_lines)
    assert len(lines) == len(results), f"chunk {claim.chunk_id}: a line twice in one flush"
    assert all(line in allowed for line in lines), f"chunk {claim.chunk_id}: a line outside {allowed}"


def _give_back(session: Session, claim: ClaimedChunk) -> None:
    state = lock_batch_state(session, claim.batch_id)
    leave(session, claim, ChunkState.READY if state is BatchState.IN_PROGRESS else ChunkState.WITHDRAWN)


def _ledger_entry(claim: ClaimedChunk, recorded: Recorded, flush_no: int) -> dict[str, Any]:
    return {
        "tenant_id": claim.tenant_id,
        "batch_id": claim.batch_id,
        "chunk_id": claim.chunk_id,
        "fence": claim.fence,
        "flush_no": flush_no,
        "model": claim.model,
        "num_results": recorded.num_results,
        "priority": claim.priority,
        "input_price_picos": claim.prices.input_picos,
        "cached_input_price_picos": claim.prices.cached_input_picos,
        "output_price_picos": claim.prices.output_picos,
        "reading_price_picos": claim.prices.reading_picos,
    } | asdict(recorded)


# A flush has few statements, as each is a way to the server and back. Whoever waits for the batch reads it anew when it
# has its lock, so the number of its results is that of the last commit.
_EXTEND_AND_LOCK = text(f"""
    WITH held AS (
        SELECT id, covered_tokens FROM chunk WHERE {LEASES.sql.is_held} FOR NO KEY UPDATE
    ), extended AS (
        UPDATE chunk SET {LEASES.sql.renewed},
            covered_tokens = least(CAST(:covered AS bigint), held.covered_tokens),
            covered_picos = least(CAST(:covered_picos AS numeric), chunk.covered_picos)
        FROM held WHERE chunk.id = held.id
        RETURNING chunk.batch_id, held.covered_tokens - chunk.covered_tokens AS uncovered
    )
    SELECT extended.uncovered, batch.state, batch.created_at, batch.num_completed + batch.num_failed AS num_results
    FROM extended JOIN batch ON batch.id = extended.batch_id FOR NO KEY UPDATE OF batch
""")

_ESTIMATE = text("UPDATE chunk SET estimated_tokens = :tokens WHERE id = :chunk_id")

_START = text(f"UPDATE chunk SET started_fence = fence WHERE {LEASES.sql.is_held} RETURNING id")

# SKIP LOCKED: one that is being claimed may wait for a row this transaction holds. `jobs.batches.sweeps` repeats.
_WITHDRAW = text("""
    UPDATE chunk SET state = :after, hinted_at = NULL
    WHERE id IN (
        SELECT id FROM chunk WHERE batch_id = :batch_id AND (state = 'ready' OR state = 'waiting' OR state = 'deferred')
        FOR UPDATE SKIP LOCKED
    )
    RETURNING id
""")

_DONE_LINES = text("""
    SELECT line_no FROM result
    WHERE batch_day = :day AND batch_id = :batch_id AND line_no >= :first AND line_no < :end
""")

_COUNT_AND_BILL = text(f"""
    WITH counted AS ({COUNT})
    INSERT INTO ledger (tenant_id, batch_id, chunk_id, fence, flush_no, model, num_results, input_tokens,
        cached_tokens, output_tokens, cost_picos, priority, input_price_picos, cached_input_price_picos,
        output_price_picos, worker_microseconds, reading_microseconds, reading_price_picos,
        num_truncated)
    VALUES (:tenant_id, :batch_id, :chunk_id, :fence, :flush_no, :model, :num_results, :input_tokens,
        :cached_tokens, :output_tokens, :cost_picos, :priority, :input_price_picos, :cached_input_price_picos,
        :output_price_picos, :worker_microseconds, :reading_microseconds, :reading_price_picos,
        :num_truncated)
""")
