"""Counters and timers of the engine. Each number is declared once, here; exports and reports read the declaration.

Values only: no clock, queue or model. To add a counter, declare it in the part of its owner and add to it where the
event happens; with a `metric`, workers export it, and docs/metrics.md has its row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

BOUNDS_SECONDS = tuple(step * 10.0**power for power in range(-3, 4) for step in (1, 2, 5))
"""Upper bounds of all buckets except the last, which has none: 1 ms to 5,000 s."""

BOUNDS_SIZES = tuple(2**power for power in range(21))
"""Upper bounds of sizes: 1 to 1,048,576."""

Number = TypeVar("Number", int, float, float | None)
Part = TypeVar("Part")


@dataclass(slots=True)
class Histogram:
    """Durations by bucket, and their sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_SECONDS) + 1))
    """`counts[i]` counts durations at or below `BOUNDS_SECONDS[i]` and above the bound before."""
    sum_seconds: float = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count a duration."""
        self.counts[bisect_left(BOUNDS_SECONDS, seconds)] += count
        self.sum_seconds += seconds * count

    @property
    def bounds(self) -> Sequence[float]:
        return BOUNDS_SECONDS

    @property
    def sum(self) -> float:
        return self.sum_seconds

    def snapshot(self) -> Histogram:
        """Return a copy that does not change."""
        return Histogram(self.counts[:], self.sum_seconds)


@dataclass(slots=True)
class SizeHistogram:
    """Sizes by bucket, and their sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_SIZES) + 1))
    """`counts[i]` counts sizes at or below `BOUNDS_SIZES[i]` and above the bound before."""
    sum: int = 0

    @property
    def bounds(self) -> Sequence[float]:
        return BOUNDS_SIZES

    def add(self, size: int) -> None:
        """Count a size."""
        self.counts[min(max(size - 1, 0).bit_length(), len(BOUNDS_SIZES))] += 1
        self.sum += size

    def snapshot(self) -> SizeHistogram:
        """Return a copy that does not change."""
        return SizeHistogram(self.counts[:], self.sum)


def _measure(meaning: str, metric: str | None = None) -> dict[str, str | None]:
    """Return metadata: a field's meaning and, if workers export it, the metric's name."""
    return {"meaning": meaning, "metric": metric}


def _number(start: Number, meaning: str, *, metric: str | None = None) -> Number:
    return field(default=start, metadata=_measure(meaning, metric))


@dataclass(slots=True)
class EngineLoad:
    """The present load: sequences that run and wait, blocks in use, and the capacity."""

    num_running: int = _number(0, "sequences in the running batch", metric="num_requests_running")
    num_waiting: int = _number(0, "sequences that wait for a seat or a grammar", metric="num_requests_waiting")
    max_num_seqs: int = _number(0, "seats")
    num_blocks: int = _number(0, "blocks of the KV cache that sequences can use")
    num_used_blocks: int = _number(0, "blocks that sequences hold")
    num_cached_blocks: int = _number(0, "blocks that can be found by their tokens")

    @property
    def slot_occupancy(self) -> float:
        """Return the share of the seats that are taken."""
        return self.num_running / max(1, self.max_num_seqs)

    @property
    def kv_use(self) -> float:
        """Return the share of the blocks that sequences hold."""
        return self.num_used_blocks / max(1, self.num_blocks)


@dataclass(slots=True)
class SchedulerCounters:
    """Steps planned and sequences preempted by the scheduler."""

    num_steps: int = _number(0, "steps", metric="num_steps_total")
    num_seqs: int = _number(0, "sequences in steps, once a step")
    num_computed_tokens: int = _number(0, "tokens that steps computed")
    num_preemptions: int = _number(0, "sequences that lost their seat", metric="num_preemptions_total")
    num_swaps: int = _number(0, "of these, those whose blocks went to host memory", metric="num_swaps_total")

    @property
    def mean_batch(self) -> float:
        """Return sequences per step, averaged over all steps."""
        return self.num_seqs / max(1, self.num_steps)


@dataclass(slots=True)
class Sizes:
    """How large steps and sequences were."""

    step_sequences: SizeHistogram = field(
        default_factory=SizeHistogram, metadata=_measure("sequences in a step: the batch size", "step_sequences")
    )
    sequence_kv_tokens: SizeHistogram = field(
        default_factory=SizeHistogram,
        metadata=_measure("tokens that a sequence had in the KV cache when it ended", "sequence_kv_tokens"),
    )

    def snapshot(self) -> Sizes:
        """Return a copy that does not change."""
        return Sizes(*[one.snapshot() for one in _values_of(Sizes)(self)])


@dataclass(slots=True)
class CacheCounters:
    """Lookups and occupancy of the KV cache, as sums over the steps."""

    num_looked_up_tokens: int = _number(0, "tokens looked up in the prefix cache", metric="prefix_cache_queries_total")
    num_cached_tokens: int = _number(0, "tokens found in the prefix cache", metric="prefix_cache_hits_total")
    num_block_steps: int = _number(0, "blocks that sequences held, once a step")
    num_slot_steps: int = _number(0, "token slots of the blocks of a step's sequences, once a step")
    num_written_slot_steps: int = _number(0, "of these, those that held a token")

    @property
    def waste(self) -> float:
        """Return the share of allocated token slots that held no token, averaged over all steps."""
        return 1.0 - self.num_written_slot_steps / max(1, self.num_slot_steps)


@dataclass(slots=True)
class RequestCounters:
    """Prompt and output tokens of requests, and their ends."""

    num_prompt_tokens: int = _number(0, "tokens of the prompts taken in", metric="prompt_tokens_total")
    num_output_tokens: int = _number(0, "tokens given to requests", metric="generation_tokens_total")
    num_forced_tokens: int = _number(0, "of these, those given by a grammar alone", metric="num_forced_tokens_total")
    num_finished: int = _number(0, "sequences that ended, however they did", metric="sequences_finished_total")
    num_broken: int = _number(
        0, "sequences that ended because their logits were NaN or infinite", metric="sequences_broken_total"
    )


@dataclass(slots=True)
class SpeculationCounters:
    """Drafts that steps computed and how many were accepted."""

    num_drafted: int = _number(0, "drafts that steps computed", metric="spec_decode_num_draft_tokens_total")
    num_accepted: int = _number(
        0, "tokens that steps gave beyond their first for a sequence", metric="spec_decode_num_accepted_tokens_total"
    )

    @property
    def acceptance_rate(self) -> float:
        """Return the share of the drafted tokens that were accepted; 0 when there were none."""
        return self.num_accepted / max(1, self.num_drafted)


@dataclass(slots=True)
class WorkCounters:
    """Arithmetic and traffic of all steps, estimated from shapes (engine/loop/work.py).

    Floats, because they outgrow every integer that a message can hold. The integers of the other parts would need 292
    years at 10^9 per second.
    """

    num_operations: float = _number(
        0.0, "floating-point operations, estimated from shapes", metric="estimated_flops_total"
    )
    num_read_bytes: float = _number(0.0, "bytes read, estimated from shapes", metric="estimated_read_bytes_total")
    num_written_bytes: float = _number(
        0.0, "bytes written, estimated from shapes", metric="estimated_write_bytes_total"
    )


@dataclass(slots=True)
class Energy:
    """Readings of the device's energy meter (device/energy.py)."""

    num_joules: float | None = _number(
        None,
        "joules of the whole GPU, by NVML's counter; absent where it does not count, and where the worker lacks the "
        "package's extra `gpu` (`nvidia-ml-py`)",
        metric="energy_joules_total",
    )


@dataclass(slots=True)
class Timings:
    """Durations of the stages of sequences so far."""

    queue_time: Histogram = field(
        default_factory=Histogram, metadata=_measure("from arrival to start", "request_queue_time_seconds")
    )
    time_to_first_token: Histogram = field(
        default_factory=Histogram, metadata=_measure("from arrival to the first token", "time_to_first_token_seconds")
    )
    inter_token_latency: Histogram = field(
        default_factory=Histogram,
        metadata=_measure(
            "between tokens; one that came with others counts with its share of the time between the two steps",
            "inter_token_latency_seconds",
        ),
    )
    e2e_latency: Histogram = field(
        default_factory=Histogram, metadata=_measure("from arrival to the end", "e2e_request_latency_seconds")
    )

    def snapshot(self) -> Timings:
        """Return a copy that does not change."""
        return Timings(*[one.snapshot() for one in _values_of(Timings)(self)])


@dataclass(slots=True, kw_only=True)
class EngineStats:
    """Everything since the start, and the present state: a copy of the counters of each part of the engine."""

    load: EngineLoad = field(default_factory=EngineLoad)
    scheduler: SchedulerCounters = field(default_factory=SchedulerCounters)
    cache: CacheCounters = field(default_factory=CacheCounters)
    requests: RequestCounters = field(default_factory=RequestCounters)
    speculation: SpeculationCounters = field(default_factory=SpeculationCounters)
    work: WorkCounters = field(default_factory=WorkCounters)
    energy: Energy = field(default_factory=Energy)
    timings: Timings = field(default_factory=Timings)
    sizes: Sizes = field(default_factory=Sizes)

    @property
    def mean_kv_use(self) -> float:
        """Return the share of the pool's blocks that sequences held, averaged over all steps."""
        return self.cache.num_block_steps / max(1, self.load.num_blocks * self.scheduler.num_steps)


def snapshot(part: Part) -> Part:
    """Return a copy of a part that holds only numbers, of which every step needs one of each.

    It takes a quarter of the time of `dataclasses.replace`.
    """
    make: Callable[..., Part] = type(part)
    return make(*_values_of(make)(part))


@cache
def _values_of(kind: type) -> attrgetter[tuple[Any, ...]]:
    return attrgetter(*(one.name for one in fields(kind)))


def measured(stats: EngineStats) -> Iterator[tuple[str, float | Histogram | SizeHistogram]]:
    """Yield each exported metric's name and value, except unknown values."""
    for part in fields(stats):
        values = getattr(stats, part.name)
        for one in fields(values):
            value = getattr(values, one.name)
            if one.metadata["metric"] is not None and value is not None:
                yield one.metadata["metric"], value
