"""How a lease ends: the state of its chunk, the cover of lines that were running, the share of its tenant.

Who may end it is for those to know who call.
"""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.accounts import covers
from jobs.chunks import fairshare, queue_marks
from jobs.chunks.chunk_ref import ChunkRef
from jobs.chunks.fairshare import Share
from jobs.errors import FencedOutError
from jobs.lines.document_bodies import PREPARE_MODEL
from jobs.states import BatchState, ChunkState, sources_of


def leave(session: Session, chunk: ChunkRef, after: ChunkState) -> None:
    """End the lease, and the cover of lines that were running. Raises FencedOutError."""
    values = {"after": after.value, "sources": sources_of(after)} | chunk.guard
    row = session.execute(_LEAVE, values).one_or_none()
    if row is None:
        raise fenced_out(chunk)
    end_cover(session, chunk, covered=row.covered_tokens)
    if after is ChunkState.READY and row.priority != chunk.priority:
        classes = (chunk.priority, row.priority)  # where it ran, and where it waits
        fairshare.lock(session, [Share(chunk.model, each, chunk.tenant_id) for each in classes])
    correct_share(session, chunk)
    if after is ChunkState.READY:
        queue_marks.mark_chunks(session, [chunk.chunk_id])


def end_cover(session: Session, chunk: ChunkRef, *, covered: int) -> None:
    """Give the cover of a chunk whose lease has ended back to its batch. The chunk is locked."""
    if covered:
        session.execute(_END_COVER, {"id": chunk.chunk_id})
        covers.uncover(session, chunk.batch_id, covered)


def correct_share(session: Session, chunk: ChunkRef) -> None:
    """Correct the tenant's virtual time at the end of a lease: what its fence used instead of the estimate.

    What is prepared uses no tokens and is counted by milliseconds of reading, at least 1 a line, as the estimate is.
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


def fenced_out(chunk: ChunkRef) -> FencedOutError:
    return FencedOutError(
        f"chunk {chunk.chunk_id} of {chunk.batch_id} is no longer leased under fence {chunk.fence}: stop its sequences"
    )


CLASS_OF_BATCH = """
    (priority, expires_at) = (SELECT batch.priority, batch.expires_at FROM batch WHERE batch.id = chunk.batch_id)
"""
"""What a statement sets that ends a lease: a batch may be changed while workers have chunks of it."""

_LEAVE = text(f"""
    UPDATE chunk SET state = :after, lease_until = NULL, worker_id = NULL, hinted_at = NULL, {CLASS_OF_BATCH}
    WHERE {ChunkRef.IS_HELD} AND state = ANY(:sources) RETURNING covered_tokens, priority
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
