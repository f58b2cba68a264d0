"""A week of one model on a virtual clock: batches come, workers start, compute and are lost, a policy sets how many.

Work is a flow of tokens: no engine, no database. The production code learns the rate and the lengths of lines, and
tells what the queue serves before the end of each batch. Tenants share the workers evenly, each by deadline.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np
import numpy.typing as npt

from jobs.forecasts.finish_times import BatchLoad
from jobs.forecasts.rates import Look, Rate, aged, measured, tokens_of_a_line
from jobs.states import Priority
from lab.autoscaling.load import NUM_TENANTS, WEEK_SECONDS, WORKER_TOKENS, LoadBatch
from lab.simulation.simulated_batches import EPOCH

STEP_SECONDS = 15.0
ASKED_SECONDS = 30.0
"""KEDA's default polling interval."""
STARTUP_SECONDS = 130.0
SPOT_SECONDS = 8 * 3600.0
"""Mean life of a worker until it is lost without notice."""
_TAIL_SECONDS = 20.0
"""From a batch's last tokens in the flow to the end of its last line, which runs beside few others."""
_AGAIN_SECONDS = 10.0
"""Work of a lost worker that is done again: half of a line's time."""
_SPEED_SIGMA = 0.05
"""Of the speeds of workers."""
_ENDED_TOKENS = 0.5
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a policy knows when it is asked."""

    now: float
    loads: Sequence[BatchLoad]
    """The expected rest of each open batch."""
    rate: float | None
    live: int


Policy = Callable[[Seen], int]


@dataclass(slots=True, kw_only=True)
class Week:
    """The results of one run."""

    num_batches: int
    num_met: int = 0
    gpu_seconds: float = 0.0
    """Of all workers, from the request for each."""
    num_lost: int = 0
    workers: list[tuple[float, int]] = field(default_factory=list)
    """Time and number of workers, at each question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    ready_at: float
    lost_at: float
    tokens_per_second: float


class Queue:
    """One model's batches, and what is known of them: production code learns the rate and the lengths of lines."""

    def __init__(self, batches: Sequence[LoadBatch]) -> None:
        self.num_met = 0
        self.rate = Rate()
        self._batches = batches
        self._deadline = np.array([batch.deadline for batch in batches])
        self._tenant = np.array([batch.tenant for batch in batches], dtype=np.intp)
        self._tokens = np.array([batch.tokens for batch in batches])
        self._line_tokens = self._tokens / np.array([batch.num_lines for batch in batches])
        self._estimated = np.array([batch.estimated_tokens / batch.num_lines for batch in batches])
        self._left = self._tokens.copy()
        self._open = np.zeros(0, dtype=np.intp)  # by tenant, then by deadline
        self._next = 0

    @property
    def num_batches(self) -> int:
        return len(self._batches)

    @property
    def num_open(self) -> int:
        return len(self._open)

    def admit(self, now: float) -> None:
        """Open the batches that have come."""
        first = self._next
        while self._next < len(self._batches) and self._batches[self._next].at <= now:
            self._next += 1
        if self._next > first:
            joined = np.concatenate([self._open, np.arange(first, self._next)])
            self._open = joined[np.lexsort((self._deadline[joined], self._tenant[joined]))]

    def loads(self) -> list[BatchLoad]:
        """Return the expected rest of each open batch."""
        return [self._load(int(index)) for index in self._open]

    def _load(self, index: int) -> BatchLoad:
        batch, used = self._batches[index], float(self._tokens[index] - self._left[index])
        num_finished = int(used / self._line_tokens[index])
        line = tokens_of_a_line(
            estimated=float(self._estimated[index]),
            token_ratio=self.rate.token_ratio,
            num_finished=num_finished,
            used=used,
        )
        return BatchLoad(
            batch_id=str(index),
            tenant_id=str(batch.tenant),
            priority=Priority.NORMAL,
            weight=1.0,
            virtual_time=0.0,  # tenants with work are level, as all are always served
            expires_at=EPOCH + timedelta(seconds=batch.deadline),
            ready_tokens=line * (batch.num_lines - num_finished),
        )

    def do_again(self, generator: random.Random, tokens: float) -> None:
        """Lose work of one open batch, as with a worker."""
        index = generator.choice(self._open)
        self._left[index] += min(tokens, self._tokens[index] - self._left[index])

    def compute(self, now: float, *, tokens_per_second: float, num_workers: int, step_seconds: float) -> None:
        """Compute a step, learn from it, and end what is done or over."""
        room = tokens_per_second * step_seconds
        left = self._left[self._open]
        served = _served(left, self._tenant[self._open], room)
        self._left[self._open] -= served
        self._learn(float(served.sum()), num_workers, is_saturated=bool(left.sum() > room), seconds=step_seconds)
        self._end(now + step_seconds)

    def _learn(self, tokens: float, num_workers: int, *, is_saturated: bool, seconds: float) -> None:
        own = self._open
        used = self._tokens[own] - self._left[own]
        finished = used / self._line_tokens[own]
        num_lines = int(finished.sum())
        look = Look(
            seconds=seconds,
            tokens=tokens,
            num_workers=num_workers,
            is_saturated=is_saturated,
            used_tokens=float(used.sum()) if num_lines else 0.0,
            estimated_tokens=float((finished * self._estimated[own]).sum()),
            num_lines=num_lines,
        )
        self.rate = measured(aged(self.rate, seconds), look)

    def _end(self, now: float) -> None:
        own = self._open
        is_done, is_over = self._left[own] <= _ENDED_TOKENS, self._deadline[own] <= now
        self.num_met += int((is_done & (now + _TAIL_SECONDS <= self._deadline[own])).sum())
        self._open = own[~(is_done | is_over)]


class Simulation:
    """One model's queue and its workers."""

    def __init__(
        self,
        batches: Sequence[LoadBatch],
        *,
        seed: int,
        startup_seconds: float = STARTUP_SECONDS,
        spot_seconds: float = SPOT_SECONDS,
    ) -> None:
        self._queue = Queue(batches)
        self._random = random.Random(seed)
        self._startup_seconds = startup_seconds
        self._spot_seconds = spot_seconds
        self._workers: list[_Worker] = []
        self._week = Week(num_batches=len(batches))

    def run(self, policy: Policy) -> Week:
        """Run the week, and on until no batch is open."""
        wanted, asked_at, now = 0, 0.0, 0.0
        while now < WEEK_SECONDS or self._queue.num_open:
            self._queue.admit(now)
            if now >= asked_at:
                wanted, asked_at = policy(self._seen(now)), now + ASKED_SECONDS
                self._week.workers.append((now, wanted))
            self._lose(now)
            self._set(wanted, now)
            self._compute(now)
            now += STEP_SECONDS
        self._week.num_met = self._queue.num_met
        return self._week

    def _seen(self, now: float) -> Seen:
        live = sum(worker.ready_at <= now for worker in self._workers)
        return Seen(now=now, loads=self._queue.loads(), rate=self._queue.rate.tokens_per_second, live=live)

    def _set(self, wanted: int, now: float) -> None:
        """Start workers, or stop those that started last."""
        while len(self._workers) < wanted:
            ready_at = now + self._startup_seconds
            life = self._random.expovariate(1 / self._spot_seconds) if self._spot_seconds < math.inf else math.inf
            speed = WORKER_TOKENS * self._random.lognormvariate(0, _SPEED_SIGMA)
            self._workers.append(_Worker(ready_at=ready_at, lost_at=ready_at + life, tokens_per_second=speed))
        del self._workers[wanted:]

    def _lose(self, now: float) -> None:
        kept = [worker for worker in self._workers if worker.lost_at > now]
        num_lost = len(self._workers) - len(kept)
        for _ in range(min(num_lost, self._queue.num_open)):
            self._queue.do_again(self._random, _AGAIN_SECONDS * WORKER_TOKENS)
        self._week.num_lost += num_lost
        self._workers = kept

    def _compute(self, now: float) -> None:
        ready = [worker for worker in self._workers if worker.ready_at <= now]
        self._week.gpu_seconds += len(self._workers) * STEP_SECONDS
        speed = sum(worker.tokens_per_second for worker in ready)
        self._queue.compute(now, tokens_per_second=speed, num_workers=len(ready), step_seconds=STEP_SECONDS)


def _served(left: Floats, tenant: npt.NDArray[np.intp], room: float) -> Floats:
    """Share a step's tokens evenly between the tenants with work, each tenant's in order; rows are by tenant."""
    wants: Floats = np.bincount(tenant, weights=left, minlength=NUM_TENANTS).astype(np.float64)
    before = np.cumsum(left) - left
    before -= (np.cumsum(wants) - wants)[tenant]
    return np.clip(_even(wants, room)[tenant] - before, 0.0, left)


def _even(wants: Floats, room: float) -> Floats:
    """Share room evenly; none gets more than it wants."""
    shares = np.zeros(len(wants))
    for place, number in enumerate(np.argsort(wants)):
        shares[number] = min(float(wants[number]), room / (len(wants) - place))
        room -= float(shares[number])
    return shares
