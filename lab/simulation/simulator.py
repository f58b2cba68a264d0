"""Replay requests through the real scheduler and blocks, with a cost model in place of the forward pass. No torch.

The clock is virtual: a step takes what the cost model says, and nothing else takes time. There are no token ids, only
counts, and which requests share how much of their prompts; so a million requests take minutes and little memory.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from engine.config import SchedulerConfig
from engine.loop.step_loop import StepLoop
from engine.params import SamplingParams
from engine.scheduling.blocks import BlockPool
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Request
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.seat_table import SeatTable
from engine.scheduling.step_load import load_of
from engine.stats import CacheCounters, SchedulerCounters
from lab.simulation.cost import CostModel
from lab.simulation.latency import LatencyHistogram
from lab.simulation.sequences import SimulatedRequest, SimulatedSequence

_KNOWN_LENGTH = SamplingParams(ignore_eos=True)
_OPEN_LENGTH = SamplingParams()
_EOS = frozenset({0})
_NO_TOKENS = [0]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """The result of a replay. The arrays have one entry per request that ran, in the order in which they ended.

    Times are seconds on the virtual clock.
    """

    number: npt.NDArray[np.int64]
    """The request's index in the input."""
    arrival: npt.NDArray[np.float64]
    start: npt.NDArray[np.float64]
    first_token: npt.NDArray[np.float64]
    end: npt.NDArray[np.float64]
    num_preemptions: npt.NDArray[np.int64]
    gaps: LatencyHistogram
    """Times between consecutive tokens of a request."""
    counters: SchedulerCounters
    cache: CacheCounters
    seconds: float
    busy_seconds: float
    num_output_tokens: int
    num_refused: int
    """Requests that could never fit."""

    @property
    def output_tokens_per_second(self) -> float:
        """Return the generated tokens per second of virtual time, from the first arrival to the last token."""
        return self.num_output_tokens / self.seconds if self.seconds else 0.0


_Loop = StepLoop[float, list[SimulatedSequence], list[SimulatedSequence], None]


class Simulator:
    """A scheduler with its blocks on a virtual clock. `num_kv_blocks` are available to requests."""

    def __init__(
        self,
        cost: CostModel,
        config: SchedulerConfig,
        *,
        num_kv_blocks: int,
        block_size: int = 16,
        on_end: Callable[[SimulatedRequest, float], None] | None = None,
    ) -> None:
        self.now = 0.0
        self._cost = cost
        self._on_end = on_end
        self.scheduler = Scheduler(BlockPool(num_kv_blocks + 1, block_size), config, clock=lambda: self.now)
        self._loop: _Loop = StepLoop(self.scheduler, self)
        self._times = _Times()
        self._num_refused = 0
        self._num_added = 0
        self._busy_seconds = 0.0

    def run(self, requests: Iterable[SimulatedRequest]) -> SimulationResult:
        """Replay the requests, given in order of arrival, until the last has ended."""
        coming = _Arrivals(requests)
        began = self.now = coming.next_seconds if coming.has_more else 0.0
        while coming.has_more or self.scheduler.has_work:
            if not self.scheduler.has_work:
                self.now = max(self.now, coming.next_seconds)
            for request in coming.until(self.now):
                self.add(request)
            if self.scheduler.has_work:
                self.step()
        return self._times.result(
            counters=self.scheduler.counters,
            cache=self.scheduler.cache_counters,
            seconds=self.now - began,
            busy_seconds=self._busy_seconds,
            num_refused=self._num_refused,
        )

    @property
    def busy_seconds(self) -> float:
        """Return the total duration of its steps so far."""
        return self._busy_seconds

    def step(self) -> None:
        """Run the scheduler's next step."""
        self._loop.step()

    def add(self, simulated: SimulatedRequest) -> None:
        """Queue a request now; one that can never fit is counted as refused."""
        number = self._num_added
        self._num_added += 1
        num_tokens = simulated.num_prompt_tokens + simulated.max_tokens
        if num_tokens > self.scheduler.config.max_model_len or not self.scheduler.can_ever_hold(num_tokens - 1):
            self._num_refused += 1
            return
        request = Request(
            request_id=number,
            prompt_token_ids=_NO_TOKENS,
            params=_KNOWN_LENGTH if simulated.has_known_length else _OPEN_LENGTH,
            max_tokens=simulated.max_tokens,
            seed=0,
            eos_token_ids=_EOS,
            arrival=number,
            priority=simulated.priority,
            deadline=simulated.deadline,
            tenant=simulated.tenant,
        )
        self.scheduler.add([SimulatedSequence(request, simulated, self.scheduler.pool.block_size)])

    def start(self, plan: StepPlan, pending: object) -> float:
        """Advance the clock by a step's cost and return its start; the loop calls this and the following methods."""
        began = self.now
        took = self._cost.seconds(load_of(plan))
        self._busy_seconds += took
        self.now = began + took
        return began

    def draw(self, plan: StepPlan, started: float, rows: list[int] | None) -> list[SimulatedSequence]:
        """Give each sampling sequence its token; return the completed sequences."""
        return self._times.observe(plan, self.scheduler.seat_table, began=started, now=self.now)

    def record(self, plan: StepPlan, drawn: list[SimulatedSequence] | None) -> list[SimulatedSequence]:
        """Return the drawn sequences: they already count their tokens."""
        return drawn or []

    def finish(self, recorded: list[SimulatedSequence]) -> None:
        """End these sequences."""
        for sequence in recorded:
            self.scheduler.finish(sequence)
            self._times.end(sequence, self.now)
            if self._on_end is not None:
                self._on_end(sequence.asked, self.now)


class _Arrivals:
    """Requests that have not arrived yet, read one ahead."""

    def __init__(self, requests: Iterable[SimulatedRequest]) -> None:
        self._requests = iter(requests)
        self._next = next(self._requests, None)

    @property
    def has_more(self) -> bool:
        return self._next is not None

    @property
    def next_seconds(self) -> float:
        return math.inf if self._next is None else self._next.arrival_seconds

    def until(self, now: float) -> Iterator[SimulatedRequest]:
        """Yield the requests that have arrived by now."""
        while self._next is not None and self._next.arrival_seconds <= now:
            request, self._next = self._next, next(self._requests, None)
            assert self.next_seconds >= request.arrival_seconds, "the requests are not in order of arrival"
            yield request


class _Times:
    """The times at which each sequence started, had its first token and ended, and the gaps between tokens."""

    def __init__(self) -> None:
        self._columns = {name: array("d") for name in ("arrival", "start", "first_token", "end")}
        self._counts = {name: array("q") for name in ("number", "num_preemptions")}
        self._gaps = LatencyHistogram()
        self._num_output_tokens = 0

    def observe(self, plan: StepPlan, table: SeatTable, *, began: float, now: float) -> list[SimulatedSequence]:
        """Give each sampling sequence its token; return the completed sequences."""
        sequences = cast(list[SimulatedSequence], plan.sequences)  # the simulator adds no others
        num_tokens, is_sampled = table.numbers.num_tokens[plan.rows], plan.num_sampled > 0
        has_output = num_tokens > table.numbers.num_prompt_tokens[plan.rows]
        is_steady = is_sampled & has_output & (plan.counts == 1)  # its last token came in the previous step
        for index in (~is_steady).nonzero()[0].tolist():
            self._observe_piece(sequences[index], is_sampled=bool(is_sampled[index]), now=now)
        table.numbers.num_tokens[plan.rows] += is_sampled
        self._gaps.add(now - began, int(is_steady.sum()))
        at_end = np.array([sequence.num_tokens_at_end for sequence in sequences])
        return [sequences[index] for index in (is_sampled & (num_tokens + 1 == at_end)).nonzero()[0].tolist()]

    def _observe_piece(self, sequence: SimulatedSequence, *, is_sampled: bool, now: float) -> None:
        if is_sampled and math.isnan(sequence.first_token_at):
            sequence.first_token_at = now
        elif is_sampled:
            self._gaps.add(now - sequence.times.queued_at)  # it was preempted right after its last token

    def end(self, sequence: SimulatedSequence, now: float) -> None:
        """Record the times of a sequence that has ended."""
        times = (sequence.asked.arrival_seconds, sequence.times.started_at, sequence.first_token_at, now)
        for column, value in zip(self._columns.values(), times, strict=True):
            column.append(value)
        self._counts["number"].append(sequence.request.request_id)
        self._counts["num_preemptions"].append(sequence.num_preemptions)
        self._num_output_tokens += sequence.asked.num_output_tokens

    def result(
        self,
        *,
        counters: SchedulerCounters,
        cache: CacheCounters,
        seconds: float,
        busy_seconds: float,
        num_refused: int,
    ) -> SimulationResult:
        """Return everything that was recorded."""
        columns = {name: np.array(column) for name, column in (*self._columns.items(), *self._counts.items())}
        return SimulationResult(
            number=columns["number"],
            arrival=columns["arrival"],
            start=columns["start"],
            first_token=columns["first_token"],
            end=columns["end"],
            num_preemptions=columns["num_preemptions"],
            gaps=self._gaps,
            counters=counters,
            cache=cache,
            seconds=seconds,
            busy_seconds=busy_seconds,
            num_output_tokens=self._num_output_tokens,
            num_refused=num_refused,
        )
