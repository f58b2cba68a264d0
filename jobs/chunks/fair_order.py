"""Order of chunks: priority classes with ageing, start-time fair queueing between tenants, then deadlines.

Pure: queues in, ids out; no SQL. Start-time fair queueing: Goyal, Vin, Cheng, SIGCOMM 1996.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

from jobs.chunks.wanted import Wanted
from jobs.states import Priority

CLASSES = tuple(Priority)
"""Best first; the index is the rank. The last class, overflow, does not age: it uses spare capacity and has no claim to
more."""

AGE_OF_NORMAL = timedelta(minutes=5)
"""A tenant whose normal work was not served this long counts as urgent for one chunk.

Under endless urgent load this leaves everybody 12 chunks an hour: visible progress between two polls, at about 1 % of a
GPU that ends a chunk every 3 s.
"""
AGE_OF_BULK = timedelta(minutes=15)
"""Age at which bulk work counts as normal; it counts as urgent after a further AGE_OF_NORMAL.

Bulk may wait for the night, but with 3 to 4 chunks an hour a 24 h window never ends at zero.
"""
_AGES = {
    Priority.URGENT: timedelta.max,
    Priority.NORMAL: AGE_OF_NORMAL,
    Priority.BULK: AGE_OF_BULK,
    Priority.OVERFLOW: timedelta.max,
}

LOWERED = Priority.NORMAL
"""Class in which urgent chunks queue once their tenant's cap of running urgent tokens is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedChunk:
    id: int
    estimated_tokens: int
    """Milliseconds for chunks of documents to prepare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """How much of a tenant's urgent queue goes first, and where the rest stands in the next class."""

    room: int
    """Tokens; a chunk fits where any are left."""
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
    """Hinted to workers and not charged yet."""
    has_more: bool = False
    """Whether more chunks exist than were read."""
    cap: Cap | None = None


def lower_capped(queues: Sequence[Queue]) -> list[Queue]:
    """Move the chunks beyond a tenant's cap to the front of its queue in the next class, to take turns there.

    A tenant without such a queue starts at max(own, least) of that class, like a newly active one.
    """
    lower = {queue.tenant_id: queue for queue in queues if queue.priority is LOWERED}
    least = min((queue.virtual_time for queue in lower.values()), default=0.0)
    others = [queue for queue in queues if queue.priority is not LOWERED]
    for index, queue in enumerate(others):
        num = _num_first(queue)
        if queue.cap is not None and num < len(queue.chunks):
            lower[queue.tenant_id] = _lowered(queue, queue.cap, lower.get(queue.tenant_id), first=num, least=least)
            others[index] = replace(queue, chunks=queue.chunks[:num], has_more=False)
    return [*others, *lower.values()]


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
        # Where not all of it was read, the tenant's other work is not next yet.
        chunks=chunks if queue.has_more else [*chunks, *own.chunks],
        has_more=queue.has_more or own.has_more,
        hinted_tokens=own.hinted_tokens + min(queue.hinted_tokens, max(0, -cap.room)),
    )


def order(queues: Iterable[Queue], *, now: datetime, limit: int, after_others: Collection[str] = ()) -> list[int]:
    """Return the ids of the next chunks, at most `limit`, as if each were charged when it is picked.

    Among queues that stand level, those of the tenants `after_others` come last. Ends early where the next chunk in
    turn was not read (`has_more`): the next call continues there.
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
    """Return the ids of the next wanted chunks, at most `limit`; newcomers as `wanted` defines."""
    chunk_ids = order((queue for queue in queues if queue.priority in wanted.classes), now=now, limit=limit)
    if chunk_ids:
        return chunk_ids
    shared = [queue for queue in queues if queue.priority in wanted.newcomer_classes]
    new = [queue for queue in shared if queue.tenant_id not in wanted.present]
    if not wanted.are_newcomers_in_turn:
        return order(new, now=now, limit=limit)
    newcomers = {chunk.id for queue in new for chunk in queue.chunks}
    # A newcomer stands level with the least served: that is its turn.
    in_turn = order(shared, now=now, limit=limit, after_others=wanted.present)
    return list(takewhile(newcomers.__contains__, in_turn))


def effective_rank(priority: Priority, waited: timedelta) -> int:
    """Return the class reached by waiting: 0 urgent, 1 normal, 2 bulk, 3 overflow."""
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
    """Sorts after those that stand level with it."""
    position: int
    virtual_time: float
    rank: int
    waiting_since: datetime | None  # set only for lifted queues, also in their own class: they go first

    @classmethod
    def first(cls, queue: Queue, now: datetime, *, is_after: bool) -> _Turn:
        # A hint under way is service to come: without this an aged queue would get a hint on every call.
        waited = timedelta(0) if queue.hinted_tokens else now - queue.waiting_since
        rank = effective_rank(queue.priority, waited)
        # Urgent work that waited as long takes its turn among lifted work, which alone may exceed the capacity.
        is_lifted = rank < CLASSES.index(queue.priority) or (rank == 0 and waited >= AGE_OF_NORMAL)
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
