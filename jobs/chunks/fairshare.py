"""Which chunk is next: priority classes with ageing, start-time fair queueing between tenants, then deadlines.

`order` decides and is pure; the queries around it read the queues and keep the virtual times. Start-time fair
queueing: Goyal, Vin, Cheng, SIGCOMM 1996. Each model is a server with clocks of its own.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby, takewhile
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.chunks.wanted import ANY, Wanted
from jobs.states import Priority

CLASSES = (Priority.URGENT, Priority.NORMAL, Priority.BULK)
"""Best first. Index = rank."""

AGE_OF_NORMAL = timedelta(minutes=5)
"""A tenant whose normal work was not served this long counts as urgent for one chunk.

Under endless urgent load this leaves everybody 12 chunks an hour: progress that a user sees between two polls, and
about 1 % of a GPU that ends a chunk every 3 s.
"""
AGE_OF_BULK = timedelta(minutes=15)
"""The same for bulk work counting as normal; as urgent after AGE_OF_NORMAL more.

Bulk is what may wait for the night, but with 3 to 4 chunks an hour a 24 h window never ends at zero.
"""
_AGES = {Priority.URGENT: timedelta.max, Priority.NORMAL: AGE_OF_NORMAL, Priority.BULK: AGE_OF_BULK}

LOWERED = Priority.NORMAL
"""The class in which urgent chunks take their turn once so many tokens of their tenant run as it may have first."""

MIN_FETCHED = 4
"""Chunks read per queue at least; more than its fair part of `limit`, as shares are seldom even."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedChunk:
    id: int
    estimated_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """How much of a tenant's urgent queue goes first, and where the rest stands in the next class."""

    room: int
    """Tokens; a chunk is within it where any is left."""
    lower_virtual_time: float = 0.0
    lower_served_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The ready chunks of one tenant in one class."""

    tenant_id: str
    priority: Priority
    weight: float
    virtual_time: float
    waiting_since: datetime
    """The later of the last service and the creation of the first chunk."""
    chunks: Sequence[QueuedChunk]
    """Best first: earliest deadline, then oldest."""
    hinted_tokens: int = 0
    """Under way to workers and not charged yet."""
    has_more: bool = False
    """Chunks beyond these were not read."""
    cap: Cap | None = None


def lower_capped(queues: Sequence[Queue]) -> list[Queue]:
    """Put what is beyond a tenant's cap before its queue of the next class, so that it takes turns with others there.

    A tenant without such a queue stands at max(own, least) of that class, as one that becomes active does.
    """
    lower = {queue.tenant_id: queue for queue in queues if queue.priority is LOWERED}
    least = min((queue.virtual_time for queue in lower.values()), default=0.0)
    kept = [queue for queue in queues if queue.priority is not LOWERED]
    for index, queue in enumerate(kept):
        num = _num_first(queue)
        if queue.cap is not None and num < len(queue.chunks):
            lower[queue.tenant_id] = _lowered(queue, queue.cap, lower.get(queue.tenant_id), first=num, least=least)
            kept[index] = replace(queue, chunks=queue.chunks[:num], has_more=False)
    return [*kept, *lower.values()]


def _num_first(queue: Queue) -> int:
    room = math.inf if queue.cap is None else queue.cap.room
    for num, chunk in enumerate(queue.chunks):
        if room <= 0:
            return num
        room -= chunk.estimated_tokens
    return len(queue.chunks)


def _lowered(queue: Queue, cap: Cap, own: Queue | None, *, first: int, least: float) -> Queue:
    if own is None:
        # Not the service as urgent alone: with a cap of zero there is none, and each chunk would count as aged.
        since = max(queue.waiting_since, cap.lower_served_at or queue.waiting_since)
        own = replace(
            queue,
            priority=LOWERED,
            chunks=(),
            virtual_time=max(cap.lower_virtual_time, least),
            waiting_since=since,
            hinted_tokens=0,
            has_more=False,
            cap=None,
        )
    chunks = queue.chunks[first:]
    return replace(
        own,
        # Where more of it was not read, the tenant's other work is not next yet.
        chunks=chunks if queue.has_more else [*chunks, *own.chunks],
        has_more=queue.has_more or own.has_more,
        hinted_tokens=own.hinted_tokens + min(queue.hinted_tokens, max(0, -cap.room)),
    )


def order(queues: Iterable[Queue], *, now: datetime, limit: int, after_others: Collection[str] = ()) -> list[int]:
    """Return the ids of the next chunks, at most `limit`, as if each were charged when it is picked.

    Of queues that stand level, those of the tenants `after_others` are last.
    Ends early where the next chunk in turn was not read (`has_more`): the next call continues there.
    """
    heap = [_Turn.first(queue, now, is_after=queue.tenant_id in after_others) for queue in queues]
    heapq.heapify(heap)
    picked: list[int] = []
    while heap and len(picked) < limit:
        turn = heap[0]
        if turn.position == len(turn.queue.chunks):
            if turn.queue.has_more:
                break
            heapq.heappop(heap)
            continue
        picked.append(turn.queue.chunks[turn.position].id)
        heapq.heapreplace(heap, turn.following())
    return picked


def wanted_in_order(queues: Sequence[Queue], wanted: Wanted, *, now: datetime, limit: int) -> list[int]:
    """Return the ids of the next chunks that are wanted, at most `limit`; newcomers' as long as it is their turn."""
    chunk_ids = order((queue for queue in queues if queue.priority in wanted.classes), now=now, limit=limit)
    if chunk_ids:
        return chunk_ids
    shared = [queue for queue in queues if queue.priority in wanted.newcomer_classes]
    newcomers = {chunk.id for queue in shared if queue.tenant_id not in wanted.present for chunk in queue.chunks}
    # Who begins stands level with the least served: that is its turn.
    in_turn = order(shared, now=now, limit=limit, after_others=wanted.present)
    return list(takewhile(newcomers.__contains__, in_turn))


def effective_rank(priority: Priority, waited: timedelta) -> int:
    """Return the class that waiting has earned: 0 urgent, 1 normal, 2 bulk."""
    rank = CLASSES.index(priority)
    while rank and waited >= _AGES[CLASSES[rank]]:
        waited -= _AGES[CLASSES[rank]]
        rank -= 1
    return rank


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """A queue's position in the order: its next chunk at the virtual time it would be charged from."""

    queue: Queue
    is_after: bool
    """After those that stand level with it."""
    position: int
    virtual_time: float
    rank: int
    waiting_since: datetime | None  # only of queues that waiting has lifted: they go first in their new class

    @classmethod
    def first(cls, queue: Queue, now: datetime, *, is_after: bool) -> _Turn:
        # A hint under way is service to come: without this an aged queue would get a hint on every call.
        waited = timedelta(0) if queue.hinted_tokens else now - queue.waiting_since
        rank = effective_rank(queue.priority, waited)
        is_lifted = rank < CLASSES.index(queue.priority)
        return cls(
            queue=queue,
            is_after=is_after,
            position=0,
            virtual_time=queue.virtual_time + queue.hinted_tokens / queue.weight,
            rank=rank,
            waiting_since=queue.waiting_since if is_lifted else None,
        )

    def following(self) -> _Turn:
        tokens = self.queue.chunks[self.position].estimated_tokens
        return _Turn(
            queue=self.queue,
            is_after=self.is_after,
            position=self.position + 1,
            virtual_time=self.virtual_time + tokens / self.queue.weight,
            rank=CLASSES.index(self.queue.priority),
            waiting_since=None,
        )

    def __lt__(self, other: _Turn) -> bool:
        return self._key < other._key

    @property
    def _key(self) -> tuple[Any, ...]:
        level = (self.is_after, self.queue.tenant_id, self.queue.priority)
        if self.waiting_since is not None:
            return (self.rank, 0, self.waiting_since.timestamp(), *level)
        return (self.rank, 1, self.virtual_time, *level)


def pick_ready(
    session: Session, *, model: str, limit: int, again_seconds: float, urgent_tokens: int | None = None
) -> list[int]:
    """Choose the chunks to hint next and note the moment; those hinted within `again_seconds` are left out."""
    again = timedelta(seconds=again_seconds)
    picked = next_chunks(session, model=model, limit=limit, hint_again=again, urgent_tokens=urgent_tokens)
    if picked:
        session.execute(_NOTE_HINT, {"ids": picked})
    return picked


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

# SKIP LOCKED: a chunk that is being claimed needs no hint, and its claim may wait for a row this transaction holds.
# The odd form of the state test keeps the planner off the indexes of ready chunks: right after a large COPY, without
# statistics, it read all 160,000 of them to find 20 (149 ms instead of 0.5 ms).
_NOTE_HINT = text("""
    UPDATE chunk SET hinted_at = clock_timestamp()
    WHERE id IN (
        SELECT id FROM chunk WHERE id = ANY(CAST(:ids AS bigint[])) AND state || '' = 'ready' FOR UPDATE SKIP LOCKED
    )
""")
