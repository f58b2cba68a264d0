"""A fleet of workers and thousands of tenants, whose chunks are assigned by the service's own fair order.

The clock is virtual and a chunk is a number of tokens: no engine, no database. As in the service, a choice considers
few queues: the least served of each class and those that have waited longest (`jobs/chunks/ready_queues`).
"""

from __future__ import annotations

import heapq
import random
import resource
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count

from jobs.chunks.fair_order import Queue, QueuedChunk, order
from jobs.states import Priority
from lab.simulation.shares import jain_index
from lab.simulation.simulated_batches import EPOCH

_SLOTS = 6
"""Open chunks of a worker, by default."""
_TOKENS_A_SECOND = 10_000.0
"""Of a worker with all slots taken: an 8B model on one GPU."""
_CHUNK_TOKENS = 16_000
"""Estimated: 64 lines of 250 tokens."""
_WEIGHTS = (1.0, 1.0, 1.0, 2.0, 4.0)
_URGENT_SHARE = 0.02
"""Share of tenants that send a chunk now and then, which goes first. The others have endless work."""
_URGENT_SECONDS = 60.0
"""Mean time between two chunks of one of them."""
_CANDIDATES = 2
"""Queues of each class that a choice considers, and as many of those that have waited longest."""
_MIB = 1 << 20
WINDOW_SECONDS = 60.0
"""In which shares are compared."""


@dataclass(slots=True, kw_only=True)
class _Tenant:
    name: str
    weight: float
    priority: Priority
    virtual_time: float = 0.0
    served_at: float = 0.0
    num_leased: int = 0
    waiting: deque[tuple[int, float]] = field(default_factory=deque)
    """Tokens of urgent chunks, and their arrivals; the others' work is endless."""
    num_tokens: float = 0.0
    """Used."""

    @property
    def is_endless(self) -> bool:
        return self.priority is not Priority.URGENT


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRun:
    """The results."""

    num_decisions: int
    decision_seconds: float
    """CPU time of all choices together, including finding the candidates."""
    index: float
    """Jain's index of tokens ÷ weight among the tenants with endless work, in the least fair window."""
    urgent_waits: Sequence[float]
    """Waiting times of urgent chunks in seconds, sorted."""
    most_tokens: float
    """Of the tenant with most tokens by its weight, as a multiple of the mean."""
    fewest_tokens: float
    memory_bytes: int
    """Peak memory of the process beyond that before the fleet was made."""


class Fleet:
    """Some workers of one model, all of them busy."""

    def __init__(self, *, num_workers: int, num_tenants: int, seed: int) -> None:
        self._bytes_before = _peak_bytes()
        self._random = random.Random(seed)
        self._num_workers = num_workers
        self._now = 0.0
        self._tenants = [self._tenant(number) for number in range(num_tenants)]
        self._endless = [tenant for tenant in self._tenants if tenant.is_endless]
        self._by_time: dict[Priority, list[tuple[float, int]]] = defaultdict(list)  # heaps of tenants with work
        self._by_wait: list[tuple[float, int]] = []
        self._events: list[
            tuple[float, int, int, int]
        ] = []  # (end, a number, tenant, tokens charged); None: an arrival
        self._numbers = count()
        self._num_decisions = 0
        self._decision_seconds = 0.0
        self._urgent_waits: list[float] = []

    def run(self, *, seconds: float, window_seconds: float) -> FleetRun:
        """Let all slots take chunks for `seconds`, and record the shares of each window."""
        for number in range(len(self._tenants)):
            self._offer_first(number)
        for _ in range(self._num_workers * _SLOTS):
            self._start()
        indexes, before = [], self._used()
        for end in _window_ends(seconds, window_seconds):
            self._advance(end)
            used = self._used()
            indexes.append(jain_index([now - then for now, then in zip(used, before, strict=True)]))
            before = used
        mean = sum(before) / len(before)
        return FleetRun(
            num_decisions=self._num_decisions,
            decision_seconds=self._decision_seconds,
            index=min(indexes[1:] or indexes),  # in the first one all start at once
            urgent_waits=sorted(self._urgent_waits),
            most_tokens=max(before) / mean,
            fewest_tokens=min(before) / mean,
            memory_bytes=_peak_bytes() - self._bytes_before,
        )

    def _tenant(self, number: int) -> _Tenant:
        is_urgent = self._random.random() < _URGENT_SHARE
        weight = 1.0 if is_urgent else self._random.choice(_WEIGHTS)
        return _Tenant(name=f"t{number}", weight=weight, priority=Priority.URGENT if is_urgent else Priority.NORMAL)

    def _offer_first(self, number: int) -> None:
        if self._tenants[number].is_endless:
            self._offer(number)
        else:
            self._arrive_later(number)

    def _advance(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self._now, _, number, charged = heapq.heappop(self._events)
            if charged:
                self._end(number, charged)
                self._start()
            else:
                self._arrive(number)
        self._now = until

    def _arrive_later(self, number: int) -> None:
        at = self._now + self._random.expovariate(1 / _URGENT_SECONDS)
        heapq.heappush(self._events, (at, next(self._numbers), number, 0))

    def _arrive(self, number: int) -> None:
        tenant = self._tenants[number]
        if not tenant.waiting and not tenant.num_leased:  # as for a tenant that becomes active: max(own, least active)
            least = self._by_time[tenant.priority]
            tenant.virtual_time = max(tenant.virtual_time, least[0][0] if least else 0.0)
        tenant.waiting.append((_CHUNK_TOKENS, self._now))
        if len(tenant.waiting) == 1:
            self._offer(number)
        self._arrive_later(number)

    def _offer(self, number: int) -> None:
        tenant = self._tenants[number]
        heapq.heappush(self._by_time[tenant.priority], (tenant.virtual_time, number))
        heapq.heappush(self._by_wait, (self._waiting_since(tenant), number))

    def _waiting_since(self, tenant: _Tenant) -> float:
        came_at = tenant.waiting[0][1] if tenant.waiting else 0.0
        return max(tenant.served_at, came_at)

    def _start(self) -> None:
        """Give a free slot the next chunk in the fair order; there always is one."""
        began_at = time.process_time()
        number = self._next()
        self._decision_seconds += time.process_time() - began_at
        self._num_decisions += 1
        tenant = self._tenants[number]
        tokens, came_at = tenant.waiting.popleft() if tenant.waiting else (_CHUNK_TOKENS, self._now)
        if not tenant.is_endless:
            self._urgent_waits.append(self._now - came_at)
        tenant.virtual_time += tokens / tenant.weight
        tenant.served_at = self._now
        tenant.num_leased += 1
        if tenant.is_endless or tenant.waiting:
            self._offer(number)
        seconds = tokens / (_TOKENS_A_SECOND / _SLOTS) * self._random.uniform(0.5, 1.5)
        heapq.heappush(self._events, (self._now + seconds, next(self._numbers), number, tokens))

    def _next(self) -> int:
        """Return the next tenant by the service's order among the candidates."""
        candidates = {number for heap in self._by_time.values() for number in self._first(heap, self._is_at)}
        candidates.update(self._first(self._by_wait, self._is_waiting_since))
        (picked,) = order(
            [self._queue(number) for number in candidates], now=EPOCH + timedelta(seconds=self._now), limit=1
        )
        return picked

    def _first(self, heap: list[tuple[float, int]], is_true: Callable[[float, int], bool]) -> list[int]:
        """Return the first valid entries of a heap, dropping stale ones."""
        valid: list[tuple[float, int]] = []
        while heap and len(valid) < _CANDIDATES:
            entry = heapq.heappop(heap)
            if is_true(*entry) and entry not in valid:
                valid.append(entry)
        for entry in valid:
            heapq.heappush(heap, entry)
        return [number for _, number in valid]

    def _is_at(self, virtual_time: float, number: int) -> bool:
        tenant = self._tenants[number]
        return tenant.virtual_time == virtual_time and (tenant.is_endless or bool(tenant.waiting))

    def _is_waiting_since(self, since: float, number: int) -> bool:
        tenant = self._tenants[number]
        return self._waiting_since(tenant) == since and (tenant.is_endless or bool(tenant.waiting))

    def _queue(self, number: int) -> Queue:
        tenant = self._tenants[number]
        return Queue(
            tenant_id=tenant.name,
            priority=tenant.priority,
            weight=tenant.weight,
            virtual_time=tenant.virtual_time,
            waiting_since=EPOCH + timedelta(seconds=self._waiting_since(tenant)),
            chunks=[QueuedChunk(id=number, estimated_tokens=_CHUNK_TOKENS)],
        )

    def _end(self, number: int, charged: int) -> None:
        """End a chunk with its true use, and correct what was charged for it."""
        tenant = self._tenants[number]
        used = charged * self._random.uniform(0.4, 1.0)
        tenant.num_tokens += used
        tenant.num_leased -= 1
        tenant.virtual_time += (used - charged) / tenant.weight
        if tenant.is_endless or tenant.waiting:
            self._offer(number)

    def _used(self) -> list[float]:
        return [tenant.num_tokens / tenant.weight for tenant in self._endless]


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _window_ends(seconds: float, window_seconds: float) -> Iterator[float]:
    for number in range(1, int(seconds / window_seconds) + 1):
        yield number * window_seconds


def report(fleet_run: FleetRun, *, window_seconds: float) -> str:
    """Return the results as text."""
    waits = fleet_run.urgent_waits
    urgent = f"{waits[len(waits) // 2]:.2f} s (p50), {waits[int(len(waits) * 0.99)]:.2f} s (p99)" if waits else "none"
    return (
        f"{fleet_run.num_decisions:,} choices, {fleet_run.decision_seconds / fleet_run.num_decisions * 1e6:.0f} µs of "
        f"processor time each\nshares by weight: Jain index at least {fleet_run.index:.4f} in {window_seconds:.0f} s; "
        f"over all the time {fleet_run.fewest_tokens:.2f} to {fleet_run.most_tokens:.2f} of the mean\n"
        f"urgent chunks waited {urgent}\nmemory of workers, tenants and queues: {fleet_run.memory_bytes / _MIB:.0f} MiB"
    )
