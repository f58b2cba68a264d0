"""Deferred chunks: put off together with their batch, and returned to the queue by a sweep.

A chunk is deferred where the object store failed to return its lines (all chunks of a batch read one object, so no
other worker would succeed), or where its tenant has used up the day's document reading. A deferred chunk is neither
hinted nor claimed, and holds no worker. Locks are taken in the order of `leasing`; the sweep skips locked rows.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs import decisions
from jobs.chunks import fairshare, queue_marks
from jobs.chunks.fairshare import Share
from jobs.chunks.lease_ends import leave, lock_batch_state
from jobs.chunks.leases import LEASES
from jobs.chunks.leasing import ClaimedChunk
from jobs.decisions import Kind
from jobs.states import BatchState, ChunkState, sources_of

_BATCHES = 50
"""Batches resumed by one sweep."""
_CHUNKS = 64
"""Chunks of one batch returned at once; the next ones follow when none of these is ready any more. Where the store is
still failing, only the first of them find out."""


def defer(session: Session, claim: ClaimedChunk, *, period: timedelta, kind: Kind = Kind.DEFERRED) -> None:
    """Give back a chunk of which no line is running, and put its batch off for `period`. Not counted as a loss.

    `kind` is the recorded decision. Raises FencedOutError.
    """
    LEASES.hold(session, claim)
    if lock_batch_state(session, claim.batch_id) is not BatchState.IN_PROGRESS:
        leave(session, claim, ChunkState.WITHDRAWN)
        return
    leave(session, claim, ChunkState.DEFERRED)
    put_off(session, claim.batch_id, period=period)
    decisions.note(session, claim.batch_id, kind, subject=claim.worker_id)


def put_off(session: Session, batch_id: str, *, period: timedelta) -> None:
    """Put off a locked batch and its ready chunks until `period` is over. Leased chunks keep running."""
    session.execute(_PUT_OFF, {"batch_id": batch_id, "period": period})
    values = {
        "batch_id": batch_id,
        "after": ChunkState.DEFERRED.value,
        "sources": [ChunkState.READY.value],
    }
    session.execute(_DEFER_READY, values)


def resume(session: Session) -> int:
    """Return due chunks to the queue; return how many."""
    batches = session.execute(_DUE, {"limit": _BATCHES}).all()
    running = [batch for batch in batches if batch.state == BatchState.IN_PROGRESS]
    busy = fairshare.lock_free(session, [Share(batch.model, batch.priority, batch.tenant_id) for batch in running])
    num_resumed = 0
    for batch in running:
        if Share(batch.model, batch.priority, batch.tenant_id) in busy:
            continue
        fairshare.activate(session, model=batch.model, priority=batch.priority, tenant_id=batch.tenant_id)
        values = {
            "batch_id": batch.id,
            "after": ChunkState.READY.value,
            "sources": sources_of(ChunkState.READY),
            "limit": _CHUNKS,
        }
        chunk_ids = session.scalars(_RESUME, values).all()
        queue_marks.mark_chunks(session, chunk_ids[:1])  # all of one queue
        num_resumed += len(chunk_ids)
    session.execute(_END, {"batch_ids": [batch.id for batch in batches]})
    return num_resumed


# Giving back another chunk of a batch that is already put off does not extend the pause.
_PUT_OFF = text("""
    UPDATE batch SET reading_limit_seconds = NULL, deferred_until = least(
        clock_timestamp() + CAST(:period AS interval),
        CASE WHEN deferred_until > clock_timestamp() THEN deferred_until END
    )
    WHERE id = :batch_id
""")

# SKIP LOCKED: a chunk that is being claimed may wait for a row that this transaction holds; its worker defers it.
_DEFER_READY = text("""
    UPDATE chunk SET state = :after, hinted_at = NULL
    WHERE id IN (
        SELECT id FROM chunk WHERE batch_id = :batch_id AND state = ANY(CAST(:sources AS text[]))
        FOR NO KEY UPDATE SKIP LOCKED
    )
""")

IS_ANY_DUE = "EXISTS (SELECT FROM batch WHERE deferred_until <= clock_timestamp())"

# A batch whose first chunks are still ready waits with the others. The odd form of the state test keeps the planner off
# the index of all ready chunks.
_DUE = text("""
    SELECT id, state, model, priority, tenant_id FROM batch
    WHERE deferred_until <= clock_timestamp()
        AND NOT EXISTS (SELECT FROM chunk WHERE chunk.batch_id = batch.id AND chunk.state || '' = 'ready')
    ORDER BY deferred_until LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
""")

_RESUME = text("""
    UPDATE chunk SET state = :after
    FROM (
        SELECT id FROM chunk WHERE batch_id = :batch_id AND state = 'deferred'
        ORDER BY id LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
    ) AS first
    WHERE chunk.id = first.id AND chunk.state = ANY(CAST(:sources AS text[]))
    RETURNING chunk.id
""")

_END = text("""
    UPDATE batch SET deferred_until = NULL, reading_limit_seconds = NULL
    WHERE id = ANY(CAST(:batch_ids AS text[]))
        AND NOT EXISTS (SELECT FROM chunk WHERE chunk.batch_id = batch.id AND chunk.state = 'deferred')
""")
