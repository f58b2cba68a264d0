"""Queue marks: a share's `waiting_since` says that its queue has ready chunks, so that scheduling reads it.

Code that makes chunks ready marks their queue; `true_up` repairs missed marks.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.database import transaction


def mark(session: Session, *, model: str, priority: str, tenant_id: str) -> None:
    """Mark a queue whose chunks have become ready, in the same transaction."""
    session.execute(_MARK_QUEUE, {"model": model, "priority": priority, "tenant_id": tenant_id})


def mark_chunks(session: Session, chunk_ids: Sequence[int]) -> None:
    """Mark the queues of chunks that have become ready, or whose place others have taken."""
    session.execute(_MARK_CHUNKS, {"ids": list(chunk_ids)})


def follow_batches(maker: sessionmaker[Session]) -> None:
    """Give hinted chunks the class and deadline of their batch: a change skips chunks that are being hinted."""
    with transaction(maker) as session:
        changed = session.scalars(_CHANGE_HINTED).all()
        if changed:
            mark_chunks(session, changed)


def true_up(maker: sessionmaker[Session]) -> None:
    """Mark queues with ready chunks that were missed, and unmark empty ones.

    Only this can unmark a queue whose last chunks were withdrawn, or claimed by two workers at once.
    """
    with transaction(maker) as session:
        session.execute(_MARK_MISSED)
    with transaction(maker) as session:
        empty = session.execute(_LOCK_EMPTY).all()
        if empty:
            models, priorities, tenant_ids = (list(column) for column in zip(*empty, strict=True))
            session.execute(_UNMARK, {"models": models, "priorities": priorities, "tenant_ids": tenant_ids})


# No EXISTS: the planner turns it into a join that reads all ready chunks, or a scan that hopes to find one soon. The
# first in this order has only one plan.
HAS_READY = """(
    SELECT chunk.id FROM chunk
    WHERE chunk.state = 'ready' AND chunk.model = {0}.model AND chunk.priority = {0}.priority
        AND chunk.tenant_id = {0}.tenant_id
    ORDER BY chunk.expires_at, chunk.id LIMIT 1
) IS NOT NULL"""

_MARK = """
    INSERT INTO fair_share (model, priority, tenant_id, waiting_since, marked_at)
    SELECT model, priority, tenant_id, clock_timestamp(), clock_timestamp() FROM ({source}) AS queue
    ORDER BY model, priority, tenant_id
    ON CONFLICT (model, priority, tenant_id) DO UPDATE
    SET waiting_since = coalesce(fair_share.waiting_since, excluded.waiting_since), marked_at = excluded.marked_at
"""
_MARK_QUEUE = text(
    _MARK.format(
        source="SELECT CAST(:model AS text) AS model, CAST(:priority AS text) AS priority, "
        "CAST(:tenant_id AS text) AS tenant_id"
    )
)
_MARK_CHUNKS = text(
    _MARK.format(source="SELECT DISTINCT model, priority, tenant_id FROM chunk WHERE id = ANY(CAST(:ids AS bigint[]))")
)

_MARK_MISSED = text(
    _MARK.format(
        source="""
        WITH RECURSIVE queue AS (
            (SELECT model, priority, tenant_id FROM chunk WHERE state = 'ready'
             ORDER BY model, priority, tenant_id LIMIT 1)
            UNION ALL
            SELECT following.model, following.priority, following.tenant_id FROM queue, LATERAL (
                SELECT model, priority, tenant_id FROM chunk
                WHERE state = 'ready'
                    AND (model, priority, tenant_id) > (queue.model, queue.priority, queue.tenant_id)
                ORDER BY model, priority, tenant_id LIMIT 1
            ) AS following
        )
        SELECT model, priority, tenant_id FROM queue WHERE NOT EXISTS (
            SELECT FROM fair_share AS share
            WHERE share.model = queue.model AND share.priority = queue.priority
                AND share.tenant_id = queue.tenant_id AND share.waiting_since IS NOT NULL
        )
        """
    )
)

# They stay hinted, so that the next call sees them again if the batch changes once more.
_CHANGE_HINTED = text("""
    UPDATE chunk SET priority = batch.priority, expires_at = batch.expires_at FROM batch
    WHERE batch.id = chunk.batch_id AND chunk.id IN (
        SELECT hinted.id FROM chunk AS hinted JOIN batch AS its ON its.id = hinted.batch_id
        WHERE hinted.state = 'ready' AND hinted.hinted_at IS NOT NULL
            AND (hinted.priority, hinted.expires_at) IS DISTINCT FROM (its.priority, its.expires_at)
        FOR NO KEY UPDATE OF hinted SKIP LOCKED
    )
    RETURNING chunk.id
""")

_LOCK_EMPTY = text(f"""
    SELECT model, priority, tenant_id FROM fair_share AS share
    WHERE waiting_since IS NOT NULL AND NOT ({HAS_READY.format("share")})
    FOR NO KEY UPDATE SKIP LOCKED
""")

# A separate statement: it sees the chunks of any transaction that marked a row before it was locked.
_UNMARK = text(f"""
    UPDATE fair_share AS share SET waiting_since = NULL
    FROM unnest(CAST(:models AS text[]), CAST(:priorities AS text[]), CAST(:tenant_ids AS text[]))
        AS locked (model, priority, tenant_id)
    WHERE share.model = locked.model AND share.priority = locked.priority AND share.tenant_id = locked.tenant_id
        AND NOT ({HAS_READY.format("share")})
""")
