"""Queues of ready chunks for `fair_order`: those that may be next, read without scanning all ready chunks.

Relies on the marks of `queue_marks`; the order itself is in `fair_order`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.chunks.fair_order import AGE_OF_NORMAL, Cap, Queue, QueuedChunk, lower_capped, wanted_in_order
from jobs.chunks.queue_marks import HAS_READY
from jobs.chunks.wanted import ANY, Wanted
from jobs.engines import fits
from jobs.engines.engine import EVERYTHING, OWN_ENGINE, ServingEngine
from jobs.states import Priority

MIN_FETCHED = 4
"""Least number of chunks read per queue; more than its even part of `limit`, as shares are seldom even."""


def pick_ready(
    session: Session, *, model: str, limit: int, again_seconds: float, urgent_tokens: int | None = None
) -> list[int]:
    """Choose the chunks to hint next and record the time; those hinted within `again_seconds` are left out."""
    again = timedelta(seconds=again_seconds)
    picked = next_chunks(session, model=model, limit=limit, hint_again=again, urgent_tokens=urgent_tokens)
    if picked:
        session.execute(_NOTE_HINT, {"ids": picked})
    return picked


def hint_age(session: Session, chunk_id: int, *, within: timedelta) -> timedelta | None:
    """Return how long ago a chunk was hinted; None after `within`: another chunk may be next by then."""
    age: timedelta | None = session.scalar(_HINT_AGE, {"id": chunk_id, "within": within})
    return age


def trace_contexts(session: Session, chunk_ids: Sequence[int]) -> dict[int, str]:
    """Return the trace contexts of those chunks whose batches are traced, by chunk."""
    rows = session.execute(_TRACE_CONTEXTS, {"ids": list(chunk_ids)})
    return {row.id: row.trace_context for row in rows}


def is_any_ready(session: Session, *, model: str) -> bool:
    """Return whether any chunk of a model is ready, whosever turn it is; cheaper than `next_chunks`."""
    return look(session, model=model, engine=OWN_ENGINE).is_any_ready


class Look(NamedTuple):
    """What a claim needs to know first."""

    is_any_ready: bool
    has_others: bool
    """Whether the engine may not run all of them: it does not meet all needs, another kind serves the model, too,
    or the model has adapters."""


def look(session: Session, *, model: str, engine: ServingEngine) -> Look:
    """Look whether any chunk of a model is ready, and whether the engine may not run every one."""
    row = session.execute(_LOOK, {"model": model, "kind": engine.kind}).one()
    is_chosen = engine.meets != EVERYTHING or engine.spill is not None
    return Look(bool(row.is_any_ready), bool(row.has_others) or is_chosen)


def next_chunks(
    session: Session,
    *,
    model: str,
    limit: int,
    wanted: Wanted = ANY,
    hint_again: timedelta | None = None,
    urgent_tokens: int | None = None,
    engine: ServingEngine | None = None,
) -> list[int]:
    """Return the next wanted chunks in turn; chunks hinted within `hint_again` are left out.

    `urgent_tokens` is the cap of tenants without their own; None is no cap. With `engine` only chunks that it may run.
    """
    if limit <= 0:
        return []
    values = {
        "model": model,
        "limit": limit,
        "classes": [priority.value for priority in wanted.all_classes],
        "num_present": len(wanted.present),
        "ages": AGE_OF_NORMAL,
        "min_fetched": MIN_FETCHED,
        # Without hints nothing counts as recently hinted: no hint lies in the future.
        "again": hint_again or timedelta(days=-1),
        "urgent_tokens": urgent_tokens,
    }
    session.execute(_PLAN_ONCE)
    if engine is None:
        rows = session.execute(_READ_IN_TURN, values).all()
        if not rows:  # no queue is marked: a mark may have been missed
            rows = session.execute(_READ_ALL, values).all()
    else:  # often there is nothing for it, and reading all queues each time would cost too much
        read = _READ_FITTING if engine.spill is None else _READ_LEAVING
        rows = session.execute(read, values | fits.values_of(engine)).all()
    session.execute(_PLAN_AS_EVER)
    if not rows:
        return []
    queues = [_queue(list(group)) for _, group in groupby(rows, key=lambda row: (row.priority, row.tenant_id))]
    return wanted_in_order(lower_capped(queues), wanted, now=rows[0].now, limit=limit)


def _queue(rows: Sequence[Any]) -> Queue:
    first = rows[0]
    return Queue(
        tenant_id=first.tenant_id,
        priority=Priority(first.priority),
        weight=first.weight,
        virtual_time=first.virtual_time,
        waiting_since=first.waiting_since,
        chunks=[QueuedChunk(id=row.id, estimated_tokens=row.estimated_tokens) for row in rows],
        hinted_tokens=int(first.hinted_tokens),
        has_more=len(rows) == first.num_fetched,
        cap=_cap(first),
    )


def _cap(row: Any) -> Cap | None:
    if row.room is None:
        return None
    return Cap(room=int(row.room), lower_virtual_time=row.lower_virtual_time, lower_served_at=row.lower_served_at)


# Queues that may be next, each by one index probe: of each class the least served and the longest waiting, `limit` of
# them plus as many as there are tenants that the order may set back (a hint, running urgent work, work on this worker).
# Tenants whose urgent work counts as normal are all read: their place depends on another class. A tenant's urgent and
# normal work come together, as one may take the turns of the other. OFFSET 0 keeps the index's order, so that LIMIT
# ends the probes. statement_timestamp(), as clock_timestamp() differs at each row and cannot be used with an index.
_IN_TURN = """
    wide AS (
        SELECT :limit + :num_present + (SELECT count(*) FROM hinted) + (SELECT count(*) FROM urgent) AS num
    ), next AS (
        SELECT class.priority, first.tenant_id FROM unnest(CAST(:classes AS text[])) AS class (priority), LATERAL (
            SELECT tenant_id FROM (
                SELECT model, priority, tenant_id, virtual_time FROM fair_share
                WHERE model = :model AND priority = class.priority AND waiting_since IS NOT NULL
                ORDER BY virtual_time, tenant_id OFFSET 0
            ) AS share
            WHERE {share_has_ready} AND (class.priority <> 'urgent' OR coalesce((
                SELECT coalesce(max_urgent_tokens, CAST(:urgent_tokens AS bigint)) > 0 FROM tenant WHERE id = tenant_id
            ), TRUE))
            ORDER BY virtual_time, tenant_id LIMIT (SELECT num FROM wide)
        ) AS first
        UNION
        SELECT class.priority, first.tenant_id FROM unnest(CAST(:classes AS text[])) AS class (priority), LATERAL (
            SELECT tenant_id FROM (
                SELECT model, priority, tenant_id, waiting_since FROM fair_share
                WHERE model = :model AND priority = class.priority
                    AND waiting_since <= statement_timestamp() - CAST(:ages AS interval)
                ORDER BY waiting_since OFFSET 0
            ) AS share
            WHERE {share_has_ready} ORDER BY waiting_since LIMIT (SELECT num FROM wide)
        ) AS first
        UNION
        SELECT priority, tenant_id FROM fair_share AS share
        WHERE model = :model AND priority = 'urgent' AND 'urgent' = ANY(CAST(:classes AS text[]))
            AND waiting_since IS NOT NULL AND tenant_id = ANY(ARRAY(
                SELECT tenant_id FROM urgent UNION SELECT tenant_id FROM hinted WHERE priority = 'urgent'
                UNION SELECT id FROM tenant WHERE max_urgent_tokens = 0
            ))
            AND {share_has_ready}
        UNION
        SELECT priority, tenant_id FROM fair_share AS share
        WHERE CAST(:urgent_tokens AS bigint) = 0 AND model = :model AND priority = 'urgent'
            AND 'urgent' = ANY(CAST(:classes AS text[])) AND waiting_since IS NOT NULL
            AND {share_has_ready}
    ), queue AS (
        SELECT priority, tenant_id FROM next
        UNION
        SELECT priority, tenant_id FROM (
            SELECT :model AS model, class.priority, tenant_id
            FROM (SELECT DISTINCT tenant_id FROM next WHERE priority IN ('urgent', 'normal')) AS tenants,
                unnest(CAST(:classes AS text[])) AS class (priority)
            WHERE class.priority IN ('urgent', 'normal')
        ) AS beside
        WHERE {beside_has_ready}
    )
"""

# The recursion jumps from one (class, tenant) to the next through the partial index of ready chunks: its cost grows
# with the number of waiting tenants, not of chunks.
_ALL = """
    queue AS (
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
    )
"""

# The last LATERAL reads the head of each queue from the index of ready chunks. The others, with their LIMIT, keep the
# planner from joining with all tenants: it expects half of them in `queue`.
_READ = """
    WITH RECURSIVE hinted AS (
        SELECT priority, tenant_id, sum(estimated_tokens) AS tokens FROM chunk
        WHERE state = 'ready' AND hinted_at IS NOT NULL AND model = :model
            AND hinted_at > clock_timestamp() - CAST(:again AS interval)
        GROUP BY priority, tenant_id
    ), urgent AS (
        SELECT tenant_id, sum(estimated_tokens) AS tokens FROM chunk
        WHERE state = 'leased' AND model = :model AND priority = 'urgent'
            AND 'urgent' = ANY(CAST(:classes AS text[]))
        GROUP BY tenant_id
    ), {queues}, fetched AS (
        SELECT greatest(:min_fetched, ceil(:limit / greatest(count(*), 1)::float8))::bigint AS num FROM queue
    )
    SELECT queue.priority, queue.tenant_id, tenant.weight, coalesce(share.virtual_time, 0) AS virtual_time,
        greatest(coalesce(share.waiting_since, head.created_at), share.served_at) AS waiting_since,
        coalesce(hinted.tokens, 0) AS hinted_tokens, fetched.num AS num_fetched,
        head.id, head.estimated_tokens, clock_timestamp() AS now,
        CASE WHEN queue.priority = 'urgent' THEN
            coalesce(tenant.max_urgent_tokens, CAST(:urgent_tokens AS bigint))
                - coalesce(urgent.tokens, 0) - coalesce(hinted.tokens, 0)
        END AS room,
        coalesce(lower.virtual_time, 0) AS lower_virtual_time, lower.served_at AS lower_served_at
    FROM queue
    CROSS JOIN fetched
    CROSS JOIN LATERAL (
        SELECT weight, max_urgent_tokens FROM tenant WHERE id = queue.tenant_id LIMIT 1
    ) AS tenant
    LEFT JOIN LATERAL (
        SELECT virtual_time, waiting_since, served_at FROM fair_share
        WHERE model = :model AND priority = queue.priority AND tenant_id = queue.tenant_id LIMIT 1
    ) AS share ON TRUE
    LEFT JOIN LATERAL (
        SELECT virtual_time, served_at FROM fair_share
        WHERE model = :model AND priority = 'normal' AND tenant_id = queue.tenant_id LIMIT 1
    ) AS lower ON TRUE
    LEFT JOIN urgent ON urgent.tenant_id = queue.tenant_id
    LEFT JOIN hinted ON hinted.priority = queue.priority AND hinted.tenant_id = queue.tenant_id
    CROSS JOIN LATERAL ({head}) AS head
    ORDER BY queue.priority, queue.tenant_id, head.expires_at, head.id
"""

_HEAD = """
    SELECT id, estimated_tokens, created_at, expires_at FROM chunk
    WHERE state = 'ready' AND model = :model AND priority = queue.priority AND tenant_id = queue.tenant_id
        AND (hinted_at IS NULL OR hinted_at <= clock_timestamp() - CAST(:again AS interval))
    ORDER BY expires_at, id LIMIT (SELECT num FROM fetched)
"""

_LOOK = text(
    "SELECT EXISTS (SELECT FROM chunk WHERE state = 'ready' AND model = :model) AS is_any_ready,"
    " EXISTS (SELECT FROM served_engine WHERE model = :model AND kind <> :kind)"
    " OR EXISTS (SELECT FROM model WHERE base = :model) AS has_others"
)

# Planning the next two takes ten times as long as running them, and the planner would repeat it at each call, as it
# expects plans for one call's values to be better. They read few rows whatever the values: one plan per connection is
# enough.
_PLAN_ONCE = text("SELECT set_config('plan_cache_mode', 'force_generic_plan', TRUE)")
_PLAN_AS_EVER = text("SELECT set_config('plan_cache_mode', 'auto', TRUE)")


def _in_turn(has_ready: str) -> str:
    return _IN_TURN.format(share_has_ready=has_ready.format("share"), beside_has_ready=has_ready.format("beside"))


_READ_IN_TURN = text(_READ.format(queues=_in_turn(HAS_READY), head=_HEAD))
_READ_ALL = text(_READ.format(queues=_ALL, head=_HEAD))
_READ_FITTING = text(_READ.format(queues=_in_turn(fits.HAS_READY), head=fits.HEAD))
_READ_LEAVING = text(_READ.format(queues=_in_turn(fits.OUTSIDE_HAS_READY), head=fits.OUTSIDE_HEAD))


_HINT_AGE = text("""
    SELECT clock_timestamp() - hinted_at FROM chunk
    WHERE id = :id AND hinted_at > clock_timestamp() - CAST(:within AS interval)
""")

_TRACE_CONTEXTS = text("""
    SELECT chunk.id, batch.trace_context FROM chunk JOIN batch ON batch.id = chunk.batch_id
    WHERE chunk.id = ANY(CAST(:ids AS bigint[])) AND batch.trace_context IS NOT NULL
""")

# SKIP LOCKED: a chunk that is being claimed needs no hint, and its claim may wait for a row this transaction holds. The
# odd form of the state test keeps the planner off the indexes of ready chunks: right after a large COPY, without
# statistics, it read all 160,000 of them to find 20 (149 ms instead of 0.5 ms).
_NOTE_HINT = text("""
    UPDATE chunk SET hinted_at = clock_timestamp()
    WHERE id IN (
        SELECT id FROM chunk WHERE id = ANY(CAST(:ids AS bigint[])) AND state || '' = 'ready' FOR UPDATE SKIP LOCKED
    )
""")
