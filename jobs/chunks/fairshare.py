"""The queues of chunks as `fair_order` takes them, and what tenants have had: their virtual times.

Each model is a server with clocks of its own. Who is next is not decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.chunks.fair_order import Cap, Queue, QueuedChunk, lower_capped, wanted_in_order
from jobs.chunks.wanted import ANY, Wanted
from jobs.states import Priority

MIN_FETCHED = 4
"""Chunks read per queue at least; more than its fair part of `limit`, as shares are seldom even."""


def pick_ready(
    session: Session, *, model: str, limit: int, again_seconds: float, urgent_tokens: int | None = None
) -> list[int]:
    """Choose the chunks to hint next and note the moment; those hinted within `again_seconds` are left out."""
    again = timedelta(seconds=again_seconds)
    picked = next_chunks(session, model=model, limit=limit, hint_again=again, urgent_tokens=urgent_tokens)
    if picked:
        session.execute(_NOTE_HINT, {"ids": picked})
    return picked


def was_hinted(session: Session, chunk_id: int, *, within: timedelta) -> bool:
    """Tell whether a chunk was picked that lately; after longer it may be another's turn, and a hint is but a wake."""
    return session.scalar(_WAS_HINTED, {"id": chunk_id, "within": within}) is True


def next_chunks(
    session: Session,
    *,
    model: str,
    limit: int,
    wanted: Wanted = ANY,
    hint_again: timedelta | None = None,
    urgent_tokens: int | None = None,
) -> list[int]:
    """Return the next chunks in turn, of those that are wanted; `hint_again` leaves those out that were hinted lately.

    `urgent_tokens` is the cap of tenants that have none of their own; None is no cap.
    """
    if limit <= 0:
        return []
    values = {
        "model": model,
        "limit": limit,
        "classes": [priority.value for priority in wanted.all_classes],
        "min_fetched": MIN_FETCHED,
        # Without hints nothing counts as hinted lately: no hint lies in the future.
        "again": hint_again or timedelta(days=-1),
        "urgent_tokens": urgent_tokens,
    }
    rows = session.execute(_READ_QUEUES, values).all()
    if not rows:
        return []
    queues = [_queue(list(group)) for _, group in groupby(rows, key=lambda row: (row.priority, row.tenant_id))]
    return wanted_in_order(lower_capped(queues), wanted, now=rows[0].now, limit=limit)


def charge(session: Session, *, model: str, priority: str, tenant_id: str, tokens: int) -> None:
    """Advance a tenant's virtual time for a chunk it gets, by the estimate; ageing starts again."""
    values = {"model": model, "priority": priority, "tenant_id": tenant_id, "tokens": tokens}
    session.execute(_CHARGE, values)


def correct(session: Session, *, model: str, priority: str, tenant_id: str, tokens: int) -> None:
    """Add the tokens that a chunk used beyond the estimate it was charged; a negative number gives some back."""
    values = {"model": model, "priority": priority, "tenant_id": tenant_id, "tokens": tokens}
    session.execute(_CORRECT, values)


def activate(session: Session, *, model: str, priority: str, tenant_id: str) -> None:
    """Start a tenant that had no open chunk in this class at max(own, least active): idling earns no credit.

    Where nobody is active, the largest virtual time of all stands in for the least active: it is where the clock
    stood when the last one left. Call before the tenant's chunks are written.
    """
    values = {"model": model, "priority": priority, "tenant_id": tenant_id, "is_new": True}
    session.execute(_ACTIVATE, values)


def keep_up(session: Session, *, model: str, priority: str, tenant_id: str) -> None:
    """Before a chunk is charged in a class it was lowered to: bring its tenant to max(own, least active) there.

    Where nobody is active it keeps its own time: it is no newcomer at each chunk to others that are lowered.
    """
    values = {"model": model, "priority": priority, "tenant_id": tenant_id, "is_new": False}
    session.execute(_ACTIVATE, values)


def _queue(rows: Sequence[Any]) -> Queue:
    first = rows[0]
    served_at: datetime | None = first.served_at
    return Queue(
        tenant_id=first.tenant_id,
        priority=Priority(first.priority),
        weight=first.weight,
        virtual_time=first.virtual_time,
        waiting_since=first.created_at if served_at is None else max(served_at, first.created_at),
        chunks=[QueuedChunk(id=row.id, estimated_tokens=row.estimated_tokens) for row in rows],
        hinted_tokens=int(first.hinted_tokens),
        has_more=len(rows) == first.num_fetched,
        cap=_cap(first),
    )


def _cap(row: Any) -> Cap | None:
    if row.room is None:
        return None
    return Cap(room=int(row.room), lower_virtual_time=row.lower_virtual_time, lower_served_at=row.lower_served_at)


# The recursion jumps from one (class, tenant) to the next through the partial index of ready chunks: its cost follows
# the number of tenants that wait, not of chunks. The LATERAL then reads the head of each queue from the same index.
_READ_QUEUES = text("""
    WITH RECURSIVE queue AS (
        (SELECT priority, tenant_id FROM chunk
         WHERE state = 'ready' AND model = :model AND priority = ANY(CAST(:classes AS text[]))
         ORDER BY priority, tenant_id LIMIT 1)
        UNION ALL
        SELECT following.priority, following.tenant_id FROM queue, LATERAL (
            SELECT priority, tenant_id FROM chunk
            WHERE state = 'ready' AND model = :model AND priority = ANY(CAST(:classes AS text[]))
                AND (priority, tenant_id) > (queue.priority, queue.tenant_id)
            ORDER BY priority, tenant_id LIMIT 1
        ) AS following
    ), fetched AS (
        SELECT greatest(:min_fetched, ceil(:limit / greatest(count(*), 1)::float8))::bigint AS num FROM queue
    ), hinted AS (
        SELECT priority, tenant_id, sum(estimated_tokens) AS tokens FROM chunk
        WHERE state = 'ready' AND hinted_at IS NOT NULL AND model = :model
            AND hinted_at > clock_timestamp() - CAST(:again AS interval)
        GROUP BY priority, tenant_id
    ), urgent AS (
        SELECT tenant_id, sum(estimated_tokens) AS tokens FROM chunk
        WHERE state = 'leased' AND model = :model AND priority = 'urgent'
            AND 'urgent' = ANY(CAST(:classes AS text[]))
        GROUP BY tenant_id
    )
    SELECT queue.priority, queue.tenant_id, tenant.weight, coalesce(share.virtual_time, 0) AS virtual_time,
        share.served_at, coalesce(hinted.tokens, 0) AS hinted_tokens, fetched.num AS num_fetched,
        head.id, head.estimated_tokens, head.created_at, clock_timestamp() AS now,
        CASE WHEN queue.priority = 'urgent' THEN
            coalesce(tenant.max_urgent_tokens, CAST(:urgent_tokens AS bigint))
                - coalesce(urgent.tokens, 0) - coalesce(hinted.tokens, 0)
        END AS room,
        coalesce(lower.virtual_time, 0) AS lower_virtual_time, lower.served_at AS lower_served_at
    FROM queue
    JOIN tenant ON tenant.id = queue.tenant_id
    CROSS JOIN fetched
    LEFT JOIN fair_share AS share
        ON share.model = :model AND share.priority = queue.priority AND share.tenant_id = queue.tenant_id
    LEFT JOIN fair_share AS lower
        ON lower.model = :model AND lower.priority = 'normal' AND lower.tenant_id = queue.tenant_id
    LEFT JOIN urgent ON urgent.tenant_id = queue.tenant_id
    LEFT JOIN hinted ON hinted.priority = queue.priority AND hinted.tenant_id = queue.tenant_id
    CROSS JOIN LATERAL (
        SELECT id, estimated_tokens, created_at, expires_at FROM chunk
        WHERE state = 'ready' AND model = :model AND priority = queue.priority AND tenant_id = queue.tenant_id
            AND (hinted_at IS NULL OR hinted_at <= clock_timestamp() - CAST(:again AS interval))
        ORDER BY expires_at, id LIMIT (SELECT num FROM fetched)
    ) AS head
    ORDER BY queue.priority, queue.tenant_id, head.expires_at, head.id
""")

_CHARGE = text("""
    INSERT INTO fair_share (model, priority, tenant_id, virtual_time, served_at)
    SELECT :model, :priority, id, :tokens / weight, clock_timestamp() FROM tenant WHERE id = :tenant_id
    ON CONFLICT (model, priority, tenant_id) DO UPDATE
    SET virtual_time = fair_share.virtual_time + excluded.virtual_time, served_at = excluded.served_at
""")

_CORRECT = text("""
    UPDATE fair_share SET virtual_time = fair_share.virtual_time + :tokens / tenant.weight
    FROM tenant
    WHERE tenant.id = fair_share.tenant_id AND fair_share.tenant_id = :tenant_id
        AND fair_share.model = :model AND fair_share.priority = :priority
""")

_ACTIVATE = text("""
    WITH leased AS (
        SELECT DISTINCT tenant_id FROM chunk WHERE state = 'leased' AND model = :model AND priority = :priority
    ), share AS (
        SELECT tenant_id, virtual_time, tenant_id IN (SELECT tenant_id FROM leased) OR EXISTS (
            SELECT FROM chunk WHERE state = 'ready' AND chunk.model = :model AND chunk.priority = :priority
                AND chunk.tenant_id = fair_share.tenant_id
        ) AS is_active
        FROM fair_share WHERE model = :model AND priority = :priority
    )
    INSERT INTO fair_share (model, priority, tenant_id, virtual_time)
    SELECT :model, :priority, :tenant_id,
        coalesce(
            min(virtual_time) FILTER (WHERE is_active),
            max(virtual_time) FILTER (WHERE CAST(:is_new AS boolean)),
            0
        )
    FROM share
    HAVING NOT coalesce(bool_or(is_active) FILTER (WHERE tenant_id = :tenant_id), false)
    ON CONFLICT (model, priority, tenant_id) DO UPDATE
    SET virtual_time = greatest(fair_share.virtual_time, excluded.virtual_time)
""")

_WAS_HINTED = text("""
    SELECT hinted_at > clock_timestamp() - CAST(:within AS interval) FROM chunk WHERE id = :id
""")

# SKIP LOCKED: a chunk that is being claimed needs no hint, and its claim may wait for a row this transaction holds.
# The odd form of the state test keeps the planner off the indexes of ready chunks: right after a large COPY, without
# statistics, it read all 160,000 of them to find 20 (149 ms instead of 0.5 ms).
_NOTE_HINT = text("""
    UPDATE chunk SET hinted_at = clock_timestamp()
    WHERE id IN (
        SELECT id FROM chunk WHERE id = ANY(CAST(:ids AS bigint[])) AND state || '' = 'ready' FOR UPDATE SKIP LOCKED
    )
""")
