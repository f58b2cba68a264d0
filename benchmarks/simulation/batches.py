"""Batches of several tenants on simulated workers: chunks in the real fair order, lines through the real scheduler.

The clock is virtual. Validation, files and flushes take no time here, and no lease is lost.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from benchmarks.simulation.cost import CostModel
from benchmarks.simulation.sequences import SimulatedRequest
from benchmarks.simulation.simulator import Simulator
from engine.config import SchedulerConfig
from engine.stats import CacheCounters
from jobs.chunks.fair_order import CLASSES, Queue, QueuedChunk, order
from jobs.states import Priority

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_CHUNK_LINES = 64
_OPEN_CHUNKS = 6
"""As the defaults are."""


class SimulatedLine(NamedTuple):
    """Lengths in tokens, and what the prompt begins with."""

    num_prompt_tokens: int
    num_output_tokens: int
    prefix: str = ""
    num_prefix_tokens: int = 0
    seconds_earlier: float = 0.0
    """How much before its batch's the line's own deadline is: it starts before lines that have a later one."""


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedBatch:
    """A batch, and how far it is."""

    number: int
    tenant: str
    weight: float
    priority: Priority
    arrival_seconds: float
    lines: Sequence[SimulatedLine]
    max_tokens: int
    """Of every line."""
    num_finished: int = 0
    used: int = 0
    """Tokens of the finished lines."""
    num_claimed: int = 0
    claimed_at: float = 0.0
    """When its last chunk was, in seconds."""
    end_seconds: float = math.inf

    @property
    def expires_at(self) -> datetime:
        """Return the deadline: a day after the arrival, so that the oldest of a tenant is first."""
        return _EPOCH + timedelta(days=1, seconds=self.arrival_seconds)

    @property
    def estimated_tokens(self) -> int:
        """Return what a submit would estimate for all lines."""
        return sum(line.num_prompt_tokens for line in self.lines) + self.max_tokens * len(self.lines)


@dataclass(slots=True, kw_only=True, eq=False)
class _Chunk:
    batch: SimulatedBatch
    lines: Sequence[SimulatedLine]
    num_left: int
    used: int = 0

    @property
    def estimated_tokens(self) -> int:
        return sum(line.num_prompt_tokens for line in self.lines) + self.batch.max_tokens * len(self.lines)


@dataclass(slots=True, kw_only=True)
class _Share:
    virtual_time: float = 0.0
    served_at: float = 0.0
    waiting: deque[_Chunk] = field(default_factory=deque)
    num_leased: int = 0

    @property
    def is_active(self) -> bool:
        return bool(self.waiting) or self.num_leased > 0


class BatchSimulator:
    """Some workers of one model, and the queue before them."""

    def __init__(self, cost: CostModel, config: SchedulerConfig, *, num_workers: int, num_kv_blocks: int) -> None:
        self.batches: list[SimulatedBatch] = []
        """Those that have come and not ended."""
        self.num_finished_tokens = 0
        """Of lines that have ended."""
        self._shares: dict[tuple[Priority, str], _Share] = defaultdict(_Share)
        self._weights: dict[str, float] = {}
        self._chunks: dict[int, tuple[int, _Chunk]] = {}  # by the identity of a request that runs
        self._requests: dict[int, SimulatedRequest] = {}
        self._num_open = [0] * num_workers
        self._workers = [
            Simulator(cost, config, num_kv_blocks=num_kv_blocks, on_end=self._end_line) for _ in range(num_workers)
        ]

    def run(self, coming: Iterable[SimulatedBatch], *, every_seconds: float, look: Callable[[float], None]) -> None:
        """Replay batches, given in order of arrival, until the last has ended; `look` is called every so often."""
        arrivals = deque(coming)
        next_look = every_seconds
        while arrivals or self.batches:
            now = self._advance(arrivals[0].arrival_seconds if arrivals else math.inf)
            while next_look <= now:
                look(next_look)
                next_look += every_seconds
            while arrivals and arrivals[0].arrival_seconds <= now:
                self._submit(arrivals.popleft())

    def cache_counters(self) -> list[CacheCounters]:
        """Return what each worker's prefix cache has found."""
        return [worker.scheduler.cache_counters for worker in self._workers]

    def virtual_time(self, batch: SimulatedBatch) -> float:
        """Return that of its tenant, in its class."""
        return self._shares[batch.priority, batch.tenant].virtual_time

    def _advance(self, until: float) -> float:
        """Take up what can be taken up and run one step of the worker that is behind; return the time everywhere."""
        self._claim()
        busy = [worker for worker in self._workers if worker.scheduler.has_work]
        if not busy:
            return until
        first = min(busy, key=lambda worker: worker.now)
        if first.now >= until:
            return until
        first.step()
        return min(worker.now for worker in busy)

    def _submit(self, batch: SimulatedBatch) -> None:
        self.batches.append(batch)
        self._weights[batch.tenant] = batch.weight
        share = self._shares[batch.priority, batch.tenant]
        if not share.is_active:
            active = [
                other.virtual_time
                for (priority, _), other in self._shares.items()
                if priority is batch.priority and other.is_active
            ]
            share.virtual_time = max(share.virtual_time, min(active, default=0.0))
            share.served_at = batch.arrival_seconds
        for first in range(0, len(batch.lines), _CHUNK_LINES):
            lines = batch.lines[first : first + _CHUNK_LINES]
            share.waiting.append(_Chunk(batch=batch, lines=lines, num_left=len(lines)))
        for worker in self._workers:
            if not worker.scheduler.has_work:
                worker.now = max(worker.now, batch.arrival_seconds)

    def _claim(self) -> None:
        """Give workers with a free slot the chunks that are next in turn."""
        while min(self._num_open) < _OPEN_CHUNKS and any(share.waiting for share in self._shares.values()):
            number = min(range(len(self._workers)), key=lambda number: (self._num_open[number], self._now(number)))
            self._start(number, self._next_chunk(self._now(number)))

    def _now(self, number: int) -> float:
        return self._workers[number].now

    def _next_chunk(self, now: float) -> _Chunk:
        heads = {
            number: (priority, tenant)
            for number, ((priority, tenant), share) in enumerate(self._shares.items())
            if share.waiting
        }
        queues = [self._queue(number, *key) for number, key in heads.items()]
        (picked,) = order(queues, now=_EPOCH + timedelta(seconds=now), limit=1)
        share = self._shares[heads[picked]]
        chunk = share.waiting.popleft()
        share.virtual_time += chunk.estimated_tokens / chunk.batch.weight
        share.served_at = now
        share.num_leased += 1
        return chunk

    def _queue(self, number: int, priority: Priority, tenant: str) -> Queue:
        share = self._shares[priority, tenant]
        head = share.waiting[0]
        return Queue(
            tenant_id=tenant,
            priority=priority,
            weight=self._weights[tenant],
            virtual_time=share.virtual_time,
            waiting_since=_EPOCH + timedelta(seconds=max(share.served_at, head.batch.arrival_seconds)),
            chunks=[QueuedChunk(id=number, estimated_tokens=head.estimated_tokens)],
        )

    def _start(self, number: int, chunk: _Chunk) -> None:
        self._num_open[number] += 1
        chunk.batch.num_claimed += len(chunk.lines)
        chunk.batch.claimed_at = self._now(number)
        for line in chunk.lines:
            request = SimulatedRequest(
                arrival_seconds=self._now(number),
                num_prompt_tokens=line.num_prompt_tokens,
                num_output_tokens=line.num_output_tokens,
                prefix=line.prefix,
                num_prefix_tokens=line.num_prefix_tokens,
                max_tokens=chunk.batch.max_tokens,
                priority=CLASSES.index(chunk.batch.priority),
                deadline=chunk.batch.arrival_seconds + 86_400 - line.seconds_earlier,
                tenant=chunk.batch.tenant,
            )
            self._chunks[id(request)] = (number, chunk)
            self._requests[id(request)] = request  # kept, so that its identity stays its own
            self._workers[number].add(request)

    def _end_line(self, request: SimulatedRequest, now: float) -> None:
        number, chunk = self._chunks.pop(id(request))
        del self._requests[id(request)]
        tokens = request.num_prompt_tokens + request.num_output_tokens
        self.num_finished_tokens += tokens
        chunk.used += tokens
        chunk.num_left -= 1
        batch = chunk.batch
        batch.num_finished += 1
        batch.used += tokens
        if not chunk.num_left:
            self._num_open[number] -= 1
            share = self._shares[batch.priority, batch.tenant]
            share.virtual_time += (chunk.used - chunk.estimated_tokens) / batch.weight
            share.num_leased -= 1
        if batch.num_finished == len(batch.lines):
            batch.end_seconds = now
            self.batches.remove(batch)
