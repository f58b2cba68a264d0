"""Batches of several tenants on simulated workers: chunks in the real fair order, lines through the real scheduler.

The clock is virtual. Validation, files and flushes take no time here, and no lease is lost.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import compress, count
from operator import not_
from typing import NamedTuple, cast

from engine.config import SchedulerConfig
from engine.stats import CacheCounters
from jobs.chunks.fair_order import CLASSES, Queue, QueuedChunk, order
from jobs.states import Priority
from lab.simulation.budgets import TokenBudgets
from lab.simulation.cost import CostModel
from lab.simulation.sequences import SimulatedRequest, SimulatedSequence
from lab.simulation.simulated_batches import EPOCH, SimulatedBatch, SimulatedLine
from lab.simulation.simulator import Simulator

_CHUNK_LINES = 64
_OPEN_CHUNKS = 6
"""The default."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Chunk:
    batch: SimulatedBatch
    lines: Sequence[SimulatedLine]
    """Lines that have not started."""
    num_running: int = 0
    charged: int = 0
    """The estimate of its claim."""
    used: int = 0
    """Since its claim."""

    @property
    def estimated_tokens(self) -> int:
        return sum(line.num_prompt_tokens for line in self.lines) + self.batch.max_tokens * len(self.lines)

    def cost(self, line: SimulatedLine) -> int:
        """Return the maximum tokens of a line."""
        return line.num_prompt_tokens + line.num_cached_tokens + self.batch.max_tokens


class _Running(NamedTuple):
    worker: int
    chunk: _Chunk
    line: SimulatedLine
    request: SimulatedRequest  # kept so that its id() stays unique


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
    """Some workers of one model, and their queue."""

    def __init__(
        self,
        cost: CostModel,
        config: SchedulerConfig,
        *,
        num_workers: int,
        num_kv_blocks: int,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        """`limits` are tenants' budgets in tokens: lines without room wait, possibly forever."""
        self.batches: list[SimulatedBatch] = []
        """Batches that have arrived and not ended."""
        self.num_finished_tokens = 0
        """Of lines that have ended."""
        self._shares: dict[tuple[Priority, str], _Share] = defaultdict(_Share)
        self._weights: dict[str, float] = {}
        self._budgets = TokenBudgets(limits or {})
        self._partly_begun: deque[tuple[int, _Chunk]] = deque()  # a line of theirs has ended, and others wait for room
        self._laid_aside: dict[str, list[tuple[int, int, _Chunk]]] = defaultdict(list)  # by tenant: heaps by need
        self._ended_at = 0.0  # of the last line
        self._numbers = count()
        self._running: dict[int, _Running] = {}  # by the identity of a request
        self._num_open = [0] * num_workers
        self._workers = [
            Simulator(cost, config, num_kv_blocks=num_kv_blocks, on_end=self._end_line) for _ in range(num_workers)
        ]

    def run(self, coming: Iterable[SimulatedBatch], *, every_seconds: float, look: Callable[[float], None]) -> None:
        """Replay batches, given in order of arrival, until none proceeds; `look` is called every `every_seconds`."""
        arrivals = deque(coming)
        next_look = every_seconds
        while arrivals or self.batches:
            now = self._advance(arrivals[0].arrival_seconds if arrivals else math.inf)
            if now == math.inf and self.batches:
                return  # the rest waits for room that never comes
            while next_look <= now:
                look(next_look)
                next_look += every_seconds
            while arrivals and arrivals[0].arrival_seconds <= now:
                self._submit(arrivals.popleft())

    def cache_counters(self) -> list[CacheCounters]:
        """Return each worker's prefix cache counters."""
        return [worker.scheduler.cache_counters for worker in self._workers]

    @property
    def busy_seconds(self) -> float:
        """Return the total working time of all workers."""
        return sum(worker.busy_seconds for worker in self._workers)

    def virtual_time(self, batch: SimulatedBatch) -> float:
        """Return the virtual time of its tenant, in its class."""
        return self._shares[batch.priority, batch.tenant].virtual_time

    def running(self) -> dict[int, tuple[int, int]]:
        """Return, by batch number, the number of its lines with a seat, and the tokens generated for them."""
        totals: dict[int, tuple[int, int]] = {}
        for worker in self._workers:
            for sequence in cast(Iterable[SimulatedSequence], worker.scheduler.running_sequences()):
                running = self._running.get(id(sequence.asked))
                if running is not None:
                    number = running.chunk.batch.number
                    num_lines, num_tokens = totals.get(number, (0, 0))
                    num_new = sequence.num_tokens - sequence.num_prompt_tokens
                    totals[number] = num_lines + 1, num_tokens + num_new
        return totals

    def _advance(self, until: float) -> float:
        """Claim what can be claimed and run one step of the worker that is furthest behind; return the common time."""
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
        share = self._activated(batch, now=batch.arrival_seconds)
        for first in range(0, len(batch.lines), _CHUNK_LINES):
            lines = batch.lines[first : first + _CHUNK_LINES]
            share.waiting.append(_Chunk(batch=batch, lines=lines))
        self._let_idle_wait(until=batch.arrival_seconds)

    def _let_idle_wait(self, *, until: float) -> None:
        for worker in self._workers:
            if not worker.scheduler.has_work:
                worker.now = max(worker.now, until)

    def _activated(self, batch: SimulatedBatch, *, now: float) -> _Share:
        """Return a batch's share; one that was idle catches up with the others of its class."""
        share = self._shares[batch.priority, batch.tenant]
        if not share.is_active:
            active = [
                other.virtual_time
                for (priority, _), other in self._shares.items()
                if priority is batch.priority and other.is_active
            ]
            share.virtual_time = max(share.virtual_time, min(active, default=0.0))
            share.served_at = now
        return share

    def _claim(self) -> None:
        """Give the next chunks in the fair order to workers with a free slot."""
        while self._partly_begun:
            self._begin_lines(*self._partly_begun.popleft())
        for tenant, chunks in self._laid_aside.items():
            self._wake(tenant, chunks)
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
        (picked,) = order(queues, now=EPOCH + timedelta(seconds=now), limit=1)
        share = self._shares[heads[picked]]
        chunk = share.waiting.popleft()
        chunk.charged, chunk.used = chunk.estimated_tokens, 0
        share.virtual_time += chunk.charged / chunk.batch.weight
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
            waiting_since=EPOCH + timedelta(seconds=max(share.served_at, head.batch.arrival_seconds)),
            chunks=[QueuedChunk(id=number, estimated_tokens=head.estimated_tokens)],
        )

    def _start(self, number: int, chunk: _Chunk) -> None:
        self._num_open[number] += 1
        chunk.batch.num_claimed += len(chunk.lines)
        chunk.batch.claimed_at = self._now(number)
        self._begin_lines(number, chunk)

    def _begin_lines(self, number: int, chunk: _Chunk) -> None:
        """Start the lines that there is room for; a chunk without running lines leaves."""
        fits = self._budgets.cover(chunk.batch.tenant, [chunk.cost(line) for line in chunk.lines])
        begun, chunk.lines = list(compress(chunk.lines, fits)), list(compress(chunk.lines, map(not_, fits)))
        chunk.num_running += len(begun)
        for line in begun:
            request = SimulatedRequest(
                arrival_seconds=self._now(number),
                num_prompt_tokens=line.num_prompt_tokens,
                num_output_tokens=line.num_output_tokens,
                prefix=line.prefix,
                num_prefix_tokens=line.num_prefix_tokens,
                max_tokens=chunk.batch.max_tokens,
                priority=CLASSES.index(chunk.batch.priority),
                deadline=chunk.batch.deadline - line.seconds_earlier,
                tenant=chunk.batch.tenant,
            )
            self._running[id(request)] = _Running(number, chunk, line, request)
            self._workers[number].add(request)
        if not chunk.num_running:
            self._leave(number, chunk)

    def _leave(self, number: int, chunk: _Chunk) -> None:
        """End a claim: the chunk is done, or waits until there is room for the smallest of its lines."""
        batch = chunk.batch
        self._num_open[number] -= 1
        share = self._shares[batch.priority, batch.tenant]
        share.virtual_time += (chunk.used - chunk.charged) / batch.weight
        share.num_leased -= 1
        if chunk.lines:
            batch.num_claimed -= len(chunk.lines)
            need = min(map(chunk.cost, chunk.lines))
            heapq.heappush(self._laid_aside[batch.tenant], (need, next(self._numbers), chunk))

    def _wake(self, tenant: str, chunks: list[tuple[int, int, _Chunk]]) -> None:
        """Return chunks to the queue, those with the smallest need first, as long as there is room for all of them."""
        room = self._budgets.room(tenant) or 0
        while chunks and chunks[0][0] <= room:
            need, _, chunk = heapq.heappop(chunks)
            room -= need
            self._activated(chunk.batch, now=self._ended_at).waiting.appendleft(chunk)
            self._let_idle_wait(until=self._ended_at)

    def _end_line(self, request: SimulatedRequest, now: float) -> None:
        number, chunk, line, _ = self._running.pop(id(request))
        self._ended_at = now
        tokens = request.num_prompt_tokens + request.num_output_tokens
        self.num_finished_tokens += tokens
        chunk.used += tokens
        chunk.num_running -= 1
        batch = chunk.batch
        self._budgets.settle(batch.tenant, covered=chunk.cost(line), used=tokens + line.num_cached_tokens)
        batch.num_finished += 1
        batch.used += tokens
        batch.output_tokens += request.num_output_tokens
        batch.first_end_seconds = min(batch.first_end_seconds, now)
        if chunk.lines:
            self._partly_begun.append((number, chunk))
        elif not chunk.num_running:
            self._leave(number, chunk)
        if batch.num_finished == len(batch.lines):
            batch.end_seconds = now
            self.batches.remove(batch)
