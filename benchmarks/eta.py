"""How wrong forecasts of a batch's end are: batches of several tenants in the simulator, each forecast again and again.

All figures are the cost model's; what is tested is the forecast and not the device. Knows no SQL.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks import study
from benchmarks.simulation.batches import BatchSimulator
from benchmarks.simulation.simulated_batches import SimulatedBatch, SimulatedLine
from benchmarks.traces import TraceRow
from engine.config import PolicyName, SchedulerConfig
from jobs.forecasts.finish_times import BatchLoad, forecast
from jobs.forecasts.rates import Look, Rate, measured, tokens_of_a_line
from jobs.states import Priority

LOOK_SECONDS = 5.0
NUM_WORKERS = 2
_WEIGHTS = {"a": 1.0, "b": 1.0, "c": 2.0, "d": 1.0}
_CLASSES = {Priority.URGENT: 0.1, Priority.NORMAL: 0.7, Priority.BULK: 0.2}
_LEAST_LINES, _MOST_LINES = 32, 4096
_WINDOW = 0.3
"""Of the trace, ordered by output length, that the lines of one batch are drawn from: those of a batch are alike."""
_MAX_SEQS = 512
_STAGES = (0.0, 0.25, 0.5, 0.75)


@dataclass(slots=True, kw_only=True)
class Forecasts:
    """What was expected of each batch, and when: (time, expected end)."""

    batches: list[SimulatedBatch]
    by_batch: dict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def errors(self, stage: float) -> Iterator[tuple[float, float]]:
        """Yield (error, seconds that were left) of each batch's first forecast after this part of its life."""
        for batch in self.batches:
            life = batch.end_seconds - batch.arrival_seconds
            later = [at for at in self.by_batch[batch.number] if at[0] >= batch.arrival_seconds + stage * life]
            if later:
                moment, expected = later[0]
                yield expected - batch.end_seconds, batch.end_seconds - moment


def make_batches(rows: Sequence[TraceRow], *, num_batches: int, seconds: float, seed: int = 0) -> list[SimulatedBatch]:
    """Make batches that come over so many seconds; with 0 all are there at the beginning.

    Lines are of the trace, those of a batch of similar output lengths; max_tokens is the next power of two from the
    longest of the batch. The number of lines is log-uniform.
    """
    generator = random.Random(seed)
    by_length = sorted(rows, key=lambda row: row.num_output_tokens)
    arrivals = sorted(generator.uniform(0, seconds) for _ in range(num_batches))
    return [_make_batch(number, at, by_length, generator) for number, at in enumerate(arrivals)]


def _make_batch(
    number: int, arrival_seconds: float, by_length: Sequence[TraceRow], generator: random.Random
) -> SimulatedBatch:
    width = int(_WINDOW * len(by_length))
    start = generator.randrange(len(by_length) - width)
    num_lines = round(_LEAST_LINES * (_MOST_LINES / _LEAST_LINES) ** generator.random())
    drawn = [by_length[start + generator.randrange(width)] for _ in range(num_lines)]
    tenant = generator.choice(list(_WEIGHTS))
    return SimulatedBatch(
        number=number,
        tenant=tenant,
        weight=_WEIGHTS[tenant],
        priority=generator.choices(list(_CLASSES), weights=list(_CLASSES.values()))[0],
        arrival_seconds=arrival_seconds,
        lines=[SimulatedLine(row.num_prompt_tokens, row.num_output_tokens) for row in drawn],
        max_tokens=1 << (max(row.num_output_tokens for row in drawn) - 1).bit_length(),
    )


def forecast_all(batches: list[SimulatedBatch]) -> Forecasts:
    """Run the batches and forecast all of them every LOOK_SECONDS, as a dispatcher does."""
    config = SchedulerConfig(
        max_num_seqs=_MAX_SEQS,
        max_num_batched_tokens=study.MAX_NUM_BATCHED_TOKENS,
        max_model_len=study.MAX_MODEL_LEN,
        policy=PolicyName.PRIORITY,
    )
    simulator = BatchSimulator(study.H200_LLAMA_8B, config, num_workers=NUM_WORKERS, num_kv_blocks=study.NUM_KV_BLOCKS)
    found = Forecasts(batches=batches)
    watcher = _Watcher(simulator, found)
    simulator.run(batches, every_seconds=LOOK_SECONDS, look=watcher.look)
    return found


class _Watcher:
    """What `jobs.forecasts.snapshot` is to a database."""

    def __init__(self, simulator: BatchSimulator, found: Forecasts) -> None:
        self._simulator = simulator
        self._found = found
        self._rate = Rate()
        self._num_seen_tokens = 0

    def look(self, now: float) -> None:
        """Measure the workers and forecast every open batch."""
        batches = self._simulator.batches
        used = sum(batch.used for batch in batches)
        estimated = sum(_estimated(batch) * batch.num_finished for batch in batches)
        finished = self._simulator.num_finished_tokens
        running = sum(batch.num_claimed - batch.num_finished for batch in batches)
        look = Look(
            seconds=LOOK_SECONDS,
            tokens=finished - self._num_seen_tokens,
            num_workers=NUM_WORKERS,
            is_saturated=any(batch.num_claimed < len(batch.lines) for batch in batches),
            is_warm=sum(batch.num_finished for batch in batches) >= running > 0,
            token_ratio=used / estimated if used else self._rate.token_ratio,
        )
        self._num_seen_tokens = finished
        self._rate = measured(self._rate, look)
        if self._rate.tokens_per_second is None:
            return
        speed = NUM_WORKERS * self._rate.tokens_per_second
        for expected in forecast([self._load(batch, now, speed) for batch in batches]):
            self._found.by_batch[int(expected.batch_id)].append((now, now + expected.tokens / speed))

    def _load(self, batch: SimulatedBatch, now: float, speed: float) -> BatchLoad:
        of_a_line = tokens_of_a_line(
            estimated=_estimated(batch),
            token_ratio=self._rate.token_ratio,
            num_finished=batch.num_finished,
            used=batch.used,
        )
        leased = batch.num_claimed - batch.num_finished
        return BatchLoad(
            batch_id=str(batch.number),
            tenant_id=batch.tenant,
            priority=batch.priority,
            weight=batch.weight,
            virtual_time=self._simulator.virtual_time(batch),
            expires_at=batch.expires_at,
            ready_tokens=(len(batch.lines) - batch.num_claimed) * of_a_line,
            leased_tokens=leased * of_a_line,
            leased_lines=leased,
            served_since_claim=speed * max(0.0, now - batch.claimed_at),
        )


def _estimated(batch: SimulatedBatch) -> float:
    return batch.estimated_tokens / len(batch.lines)


def table(found: Forecasts) -> str:
    """Return the errors of the forecasts at several moments of the batches' lives, in Markdown."""
    lines = [
        "| forecast | batches | left, median s | error, median | nine in ten within | median, + is too late |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for stage in _STAGES:
        pairs = np.array(list(found.errors(stage)))
        relative = pairs[:, 0] / pairs[:, 1]
        size = np.abs(relative)
        when = "first" if stage == 0 else f"after {stage:.0%} of its life"
        lines.append(
            f"| {when} | {len(pairs)} | {np.median(pairs[:, 1]):.0f} | {np.median(size):.0%} | "
            f"{np.quantile(size, 0.9):.0%} | {np.median(relative):+.0%} |"
        )
    return "\n".join(lines) + "\n"
