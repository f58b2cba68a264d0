"""Leased chunks: extend, flush, complete, give back, withdraw.

Chunk states are written here, in `claiming`, `lease_ends`, `waiting` and `deferring`.

A claim holds while the chunk is leased under its fence; every function that takes one raises FencedOutError when it
does not. Locks are taken in the order chunk → batch → fair share → decision → budget → spill day; a transaction that
holds a later lock skips locked chunks. Decisions on lost leases, which only the code that ends them locks, come before
the shares. Leases use the database's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs import decisions
from jobs.accounts import budgets, spill_days
from jobs.accounts.prices import Prices
from jobs.accounts.spill_days import NOTHING_SPENT, Spent
from jobs.chunks.chunk_ref import ChunkRef
from jobs.chunks.lease_ends import leave, lock_batch_state
from jobs.chunks.leases import LEASES
from jobs.chunks.recording import COUNT, NOTHING_WASTED, LineResult, Recorded, Wasted, insert
from jobs.decisions import Kind
from jobs.engines import fits
from jobs.engines.names import OWN
from jobs.errors import TokenmillError
from jobs.states import BatchState, ChunkState, Priority


class OtherEngineError(TokenmillError):
    """Another kind of engine gave the batch's first answer while this worker ran the chunk: its own are dropped."""


class MissingResultsError(TokenmillError):
    """Invariant broken: a chunk was completed while some of its lines have no result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedChunk(ChunkRef):
    """A chunk owned by one worker, with the fields needed to run it."""

    prices: Prices
    """The model's prices at the time of the claim, for the class in which the chunk runs."""
    weight: float
    """The tenant's weight at the time of the claim."""
    is_limited: bool
    """Whether a limit of the tenant applied at the time of the claim: lines must be covered before they run.

    The tenant's token limit does not apply to class overflow; preparing documents costs nothing, and no limit applies.
    """
    uncovered_lines: str
    """The batch's choice for lines that cannot be covered."""
    trace_context: str | None = None
    """Trace of the request that created the batch, if traced."""
    engine: str = OWN
    """The kind of the worker's engine."""
    engine_dtype: str | None = None
    """Its data type, as far as is known."""
    is_spilled: bool = False
    """Whether the worker's server is outside the house."""
    hint_waited: timedelta | None = None
    """How long the followed hint had waited; None: the chunk was claimed in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushOutcome:
    """Outcome of a flush or a heartbeat."""

    num_inserted: int
    """Results that were new."""
    recorded: Recorded | None = None
    """The results inserted by a flush."""
    batch_wanted: bool
    """False: the batch is cancelled or expired; abort running lines, flush finished ones, release the chunk."""


def start(session: Session, claim: ClaimedChunk) -> None:
    """Record that lines go to an engine from now on: a lost lease counts only after that.

    Raises FencedOutError.
    """
    if session.execute(_START, claim.guard).one_or_none() is None:
        raise LEASES.over(claim)


def lines_done(session: Session, chunk: ChunkRef) -> set[int]:
    """Return the line numbers of the chunk that have a result, and are not run again."""
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
    wasted: Wasted = NOTHING_WASTED,
    spent: Spent = NOTHING_SPENT,
    decided: Mapping[Kind, int] | None = None,
    is_last: bool = False,
) -> FlushOutcome:
    """Extend the lease and store results, ledger entry, counters and budget, all in the caller's transaction.

    With `is_last` every line has its result, and the chunk is completed where its batch is wanted. `covered` and
    `covered_picos` are the cover of the lines that still run; the rest of the cover ends here. Since the chunk's last
    flush, `worker_microseconds` is its share of its worker's time, `wasted` what was thrown away, `spent` what a
    server outside the house was paid, and `decided` what was decided about lines. When the outcome of a commit is
    unknown, repeat the call unchanged, `flush_no` included: nothing is inserted or billed twice; decisions may be
    counted twice. Other results need another `flush_no`. Raises FencedOutError, OtherEngineError, and with `is_last`
    MissingResultsError.
    """
    _check_lines(claim, results)
    own = {"kind": claim.engine, "dtype": claim.engine_dtype, "adapters": [claim.server_model]}
    values = {**claim.guard, **own, "lease": lease, "covered": covered, "covered_picos": covered_picos}
    locked = session.execute(_EXTEND_AND_LOCK, values).one_or_none()
    if locked is None:
        raise LEASES.over(claim)
    if results and not locked.may_answer:
        raise OtherEngineError(f"batch {claim.batch_id} has answers of {locked.engine}, not of {claim.engine}")
    recorded = insert(
        session,
        claim.batch_id,
        results,
        created_at=locked.created_at,
        num_before=locked.num_results,
        prices=claim.prices,
    )
    entry = _ledger_entry(claim, recorded, flush_no, wasted, spent) | {"worker_microseconds": worker_microseconds}
    is_noted = False
    if recorded.num_results:
        session.execute(_COUNT_AND_BILL, entry)
        is_noted = True
    elif wasted or spent:
        is_noted = session.execute(_NOTE_PAID, entry).one_or_none() is not None
    is_wanted = locked.state == BatchState.IN_PROGRESS
    uncovered = int(locked.uncovered)
    if is_last and is_wanted:
        complete(session, claim)  # before the budget: it locks the tenant's fair share, and reads the ledger for it
    for kind, num in sorted((decided or {}).items()):  # in a fixed order, as each locks a row
        decisions.note(session, claim.batch_id, kind, subject=claim.worker_id, num=num)
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
    if is_noted and spent:
        spill_days.settle(session, claim.model, spent.unused)  # last: all workers outside the house wait for its row
    return FlushOutcome(num_inserted=recorded.num_results, recorded=recorded, batch_wanted=is_wanted)


def extend(session: Session, claim: ClaimedChunk, lease: timedelta) -> FlushOutcome:
    """Extend the lease without results: the heartbeat. Raises FencedOutError."""
    LEASES.renew(session, claim, lease=lease)
    state = session.scalar(text("SELECT state FROM batch WHERE id = :batch_id"), {"batch_id": claim.batch_id})
    return FlushOutcome(num_inserted=0, batch_wanted=state == BatchState.IN_PROGRESS)


def complete(session: Session, claim: ClaimedChunk) -> None:
    """Complete a chunk whose every request has a result. Raises FencedOutError and MissingResultsError."""
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
    """Give back the rest of a chunk whose time slice is over, with an estimate of that rest: others may come first.

    The chunk is withdrawn where its batch is no longer wanted. Raises FencedOutError.
    """
    LEASES.hold(session, claim)
    session.execute(_ESTIMATE, {"chunk_id": claim.chunk_id, "tokens": estimated_tokens})
    _give_back(session, claim)


def withdraw_open(session: Session, batch_id: str) -> int:
    """Withdraw the ready, waiting and deferred chunks of a cancelled or expired batch; return how many.

    Lock and move the batch first. Leased chunks stay with their workers, which learn of it at their next flush or
    heartbeat, store finished results and release them.
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


def _ledger_entry(
    claim: ClaimedChunk, recorded: Recorded, flush_no: int, wasted: Wasted, spent: Spent
) -> dict[str, Any]:
    return {
        "tenant_id": claim.tenant_id,
        "batch_id": claim.batch_id,
        "chunk_id": claim.chunk_id,
        "fence": claim.fence,
        "flush_no": flush_no,
        "model": claim.named_model,
        "num_results": recorded.num_results,
        "priority": claim.priority,
        "input_price_picos": claim.prices.input_picos,
        "cached_input_price_picos": claim.prices.cached_input_picos,
        "output_price_picos": claim.prices.output_picos,
        "reading_price_picos": claim.prices.reading_picos,
        "wasted_input_tokens": wasted.input_tokens,
        "wasted_output_tokens": wasted.output_tokens,
        "spill_picos": spent.picos if claim.is_spilled else None,
        "engine": claim.engine,
        "dtype": claim.engine_dtype,
    } | asdict(recorded)


# A flush uses few statements, as each is a round trip. A statement that waits for the batch re-reads it once it has the
# lock, so the number of its results is that of the last commit.
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
    SELECT extended.uncovered, batch.state, batch.created_at, batch.num_completed + batch.num_failed AS num_results,
        batch.engine, {fits.BATCH} AS may_answer
    FROM extended JOIN batch ON batch.id = extended.batch_id FOR NO KEY UPDATE OF batch
""")

_ESTIMATE = text("UPDATE chunk SET estimated_tokens = :tokens WHERE id = :chunk_id")

_START = text(f"UPDATE chunk SET started_fence = fence WHERE {LEASES.sql.is_held} RETURNING id")

# SKIP LOCKED: a chunk that is being claimed may wait for a row this transaction holds. `jobs.batches.sweeps` repeats.
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

# The kind of engine that gives the first answer, for which refusals do not count.
_BIND = """,
    engine = CASE WHEN :num_computed > 0 THEN coalesce(engine, :engine) ELSE engine END,
    engine_dtype = CASE WHEN :num_computed > 0 AND engine IS NULL THEN CAST(:dtype AS text) ELSE engine_dtype END,
    num_spilled = num_spilled + CASE WHEN CAST(:spill_picos AS numeric) IS NULL THEN 0 ELSE :num_computed END
"""

_ENTRY = """
    INSERT INTO ledger (tenant_id, batch_id, chunk_id, fence, flush_no, model, num_results, input_tokens,
        cached_tokens, output_tokens, cost_picos, priority, input_price_picos, cached_input_price_picos,
        output_price_picos, worker_microseconds, reading_microseconds, reading_price_picos,
        num_truncated, reasoning_tokens, wasted_input_tokens, wasted_output_tokens, spill_picos)
    VALUES (:tenant_id, :batch_id, :chunk_id, :fence, :flush_no, :model, :num_results, :input_tokens,
        :cached_tokens, :output_tokens, :cost_picos, :priority, :input_price_picos, :cached_input_price_picos,
        :output_price_picos, :worker_microseconds, :reading_microseconds, :reading_price_picos,
        :num_truncated, :reasoning_tokens, :wasted_input_tokens, :wasted_output_tokens, :spill_picos)
"""
_COUNT_AND_BILL = text(f"WITH counted AS ({COUNT.format(more=_BIND)}) {_ENTRY}")

# Without results, a repeated flush cannot be told by what it inserts: its key tells.
_NOTE_PAID = text(f"{_ENTRY} ON CONFLICT (chunk_id, fence, flush_no) DO NOTHING RETURNING id")
