"""End of a lease: the chunk's state, the cover of its running lines, and its tenant's share.

Callers decide who may end it.
"""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.accounts import covers
from jobs.chunks import fairshare, queue_marks
from jobs.chunks.chunk_ref import ChunkRef
from jobs.chunks.fairshare import Share
from jobs.chunks.leases import LEASES
from jobs.lines.document_bodies import PREPARE_MODEL
from jobs.states import BatchState, ChunkState, sources_of


def leave(session: Session, chunk: ChunkRef, after: ChunkState) -> None:
    """End the lease and the cover of its running lines. Raises FencedOutError."""
    priority = end_lease(session, chunk, after)
    if after is ChunkState.READY and priority != chunk.priority:
        classes = (chunk.priority, priority)  # where it ran, and where it waits
        fairshare.lock(session, [Share(chunk.model, each, chunk.tenant_id) for each in classes])
    correct_share(session, chunk)
    if after is ChunkState.READY:
        queue_marks.mark_chunks(session, [chunk.chunk_id])


def end_lease(session: Session, chunk: ChunkRef, after: ChunkState, *, is_loss: bool = False) -> str:
    """End a chunk's lease and return its cover to the batch; return the class in which it waits.

    `is_loss` counts it as a lost lease. Raises FencedOutError.
    """
    values = {**chunk.guard, "after": after.value, "sources": sources_of(after), "is_loss": is_loss}
    row = session.execute(_END, values).one_or_none()
    if row is None:
        raise LEASES.over(chunk)
    if row.covered_tokens:
        session.execute(_END_COVER, {"id": chunk.chunk_id})
        covers.uncover(session, chunk.batch_id, row.covered_tokens)
    return str(row.priority)


def correct_share(session: Session, chunk: ChunkRef) -> None:
    """Correct the tenant's virtual time at the end of a lease by what its fence used beyond the estimate.

    Chunks of documents use no tokens and are counted in milliseconds of reading, at least 1 a line, like their
    estimate.
    """
    used_of = _PREPARED if chunk.model == PREPARE_MODEL else _USED
    used = session.scalar(used_of, {"chunk_id": chunk.chunk_id, "fence": chunk.fence})
    fairshare.correct(
        session,
        model=chunk.model,
        priority=chunk.priority,
        tenant_id=chunk.tenant_id,
        tokens=int(used or 0) - chunk.estimated_tokens,
    )


def lock_batch_state(session: Session, batch_id: str) -> BatchState:
    """Lock a batch row and return its state: nobody withdraws its chunks until this transaction ends."""
    return BatchState(session.execute(_LOCK_BATCH, {"batch_id": batch_id}).scalar_one())


# A batch may change its class while workers hold chunks of it.
_END = text(f"""
    UPDATE chunk SET state = :after, losses = losses + CAST(:is_loss AS int), {LEASES.sql.given_up}, hinted_at = NULL,
        (priority, expires_at) = (SELECT batch.priority, batch.expires_at FROM batch WHERE batch.id = chunk.batch_id)
    WHERE {LEASES.sql.is_held} AND state = ANY(:sources) RETURNING covered_tokens, priority
""")

_END_COVER = text("UPDATE chunk SET covered_tokens = 0, covered_picos = 0 WHERE id = :id")

_LOCK_BATCH = text("SELECT state FROM batch WHERE id = :batch_id FOR NO KEY UPDATE")

_USED = text("""
    SELECT sum(input_tokens + output_tokens) FROM ledger WHERE chunk_id = :chunk_id AND fence = :fence
""")
_PREPARED = text("""
    SELECT greatest(sum(reading_microseconds) / 1000, sum(num_results)) FROM ledger
    WHERE chunk_id = :chunk_id AND fence = :fence
""")
