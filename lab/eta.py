"""Accuracy of forecasts of a batch's end: simulated batches beside other tenants, forecast by the production code.

Times are the cost model's: this tests the forecast, not a device.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from engine.config import PolicyName, SchedulerConfig
from jobs.forecasts.finish_times import BatchLoad
from jobs.forecasts.looks import ModelState, Outcome, look
from jobs.forecasts.seen import BatchSeen, Ended, History, Seen
from jobs.states import Priority
from lab import study
from lab.simulation.batches import BatchSimulator
from lab.simulation.cost import CoarseCost
from lab.simulation.simulated_batches import SimulatedBatch, SimulatedLine
from lab.traces import TraceRow

LOOK_SECONDS = 5.0
NUM_WORKERS = 2
STAGES = (0.1, 0.5, 0.9)
"""Fractions of a batch's lines: the first forecast at or after each is compared with the batch's end."""
_WEIGHTS = {"a": 1.0, "b": 1.0, "c": 2.0, "d": 1.0}
_CLASSES = {Priority.URGENT: 0.1, Priority.NORMAL: 0.7, Priority.BULK: 0.2}
_WINDOW = 0.3
"""Fraction of a trace without tenants, ordered by output length, from which a batch's lines are drawn: the lines of one
batch are similar. With tenants, they are all of one tenant."""
_LEAST_ROWS = 100
"""Fewest rows of a tenant from which a batch's lines are drawn."""
_BESIDE_SECONDS = 60.0
"""The requests of one tenant within this time form one batch of the background load."""
_STRIDE = 16
"""Tokens of the trace per simulated token: line lengths are rounded to it, and a run takes minutes."""
COST = replace(
    study.H200_LLAMA_8B,
    weight_bytes=65.6e9,
    weight_count=32.8e9,
    kv_bytes_per_token=262_144.0,
    attention_width=64 * 5120.0,
)
"""An H200 with a model of 33 billion parameters in bf16."""
_KV_BLOCKS = 14_000
"""Blocks of 16 tokens: the 59 GB that weights and a step's buffers leave of 90 % of 141 GB."""
_MAX_SEQS = 512
_MAX_BATCHED_TOKENS = 2048
"""Of a step, so that the longest simulated one, which stands for `_STRIDE` steps, takes less than a forecast
interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The batches that arrive in one run."""

    measured: Sequence[SimulatedBatch]
    beside: Sequence[SimulatedBatch]
    """Batches of other tenants, which are not measured."""

    @property
    def batches(self) -> list[SimulatedBatch]:
        return sorted([*self.measured, *self.beside], key=lambda batch: batch.arrival_seconds)


class Answer(NamedTuple):
    """The forecast of a batch at some moment, in seconds from then, and its true end."""

    seconds: float
    earliest: float
    latest: float
    actual: float

    @property
    def holds(self) -> bool:
        return self.earliest <= self.actual <= self.latest


@dataclass(slots=True, kw_only=True)
class Run:
    """The forecasts of each measured batch at each stage, and how busy the workers were."""

    load: Load
    told: dict[tuple[int, float], tuple[float, Outcome]] = field(default_factory=dict)
    busy: float = 0.0

    def answers(self, stage: float) -> Iterator[Answer]:
        """Yield the forecasts at a stage, of batches that had one."""
        for batch in self.load.measured:
            moment, outcome = self.told.get((batch.number, stage), (math.inf, None))
            if outcome is None or outcome.seconds is None or batch.end_seconds <= moment:
                continue
            assert outcome.earliest_seconds is not None, "an interval comes with each end"
            assert outcome.latest_seconds is not None, "an interval comes with each end"
            yield Answer(outcome.seconds, outcome.earliest_seconds, outcome.latest_seconds, batch.end_seconds - moment)


def make_load(
    rows: Sequence[TraceRow],
    *,
    num_batches: int,
    lines: tuple[int, int],
    seconds: float,
    speed_up: float,
    seed: int = 0,
) -> Load:
    """Make batches that arrive within `seconds`, beside the trace itself, compressed in time by `speed_up`.

    Lines are the trace's; `max_tokens` is the next power of two from the longest of the batch. The number of lines is
    log-uniform in the range `lines`. The trace is repeated when it ends.
    """
    generator = random.Random(seed)
    coarse = [_coarse(row) for row in rows]
    pools = _pools(coarse, generator)
    arrivals = sorted(generator.uniform(0, seconds) for _ in range(num_batches))
    measured: list[SimulatedBatch] = []
    for at in arrivals:
        pool, tenant = next(pools), generator.choice(list(_WEIGHTS))
        num_lines = round(lines[0] * (lines[1] / lines[0]) ** generator.random())
        drawn = [generator.choice(pool) for _ in range(num_lines)]
        batch = _batch(len(measured), at, tenant=f"measured {tenant}", lines=drawn, priority=_class_of(generator))
        batch.weight = _WEIGHTS[tenant]
        measured.append(batch)
    return Load(measured=measured, beside=_beside(coarse, len(measured), seconds, speed_up, generator))


def _coarse(row: TraceRow) -> TraceRow:
    return replace(
        row,
        num_prompt_tokens=math.ceil(row.num_prompt_tokens / _STRIDE),
        num_output_tokens=math.ceil(row.num_output_tokens / _STRIDE),
    )


def _pools(rows: Sequence[TraceRow], generator: random.Random) -> Iterator[Sequence[TraceRow]]:
    """Yield the rows from which a batch's lines are drawn, endlessly."""
    by_tenant: dict[str, list[TraceRow]] = defaultdict(list)
    for row in rows:
        by_tenant[row.tenant].append(row)
    many = [own for tenant, own in by_tenant.items() if tenant and len(own) >= _LEAST_ROWS]
    by_length = sorted(rows, key=lambda row: row.num_output_tokens)
    width = max(1, int(_WINDOW * len(by_length)))
    while True:
        start = generator.randrange(len(by_length) - width + 1)
        yield generator.choice(many) if many else by_length[start : start + width]


def _class_of(generator: random.Random) -> Priority:
    return generator.choices(list(_CLASSES), weights=list(_CLASSES.values()))[0]


def _beside(
    rows: Sequence[TraceRow], first_number: int, seconds: float, speed_up: float, generator: random.Random
) -> list[SimulatedBatch]:
    """Return the trace as batches: the requests of a tenant within a minute form one."""
    period = rows[-1].arrival_seconds + 1.0
    groups: dict[tuple[str, int], list[TraceRow]] = defaultdict(list)
    for number in range(math.ceil(seconds * speed_up / period) * len(rows)):
        row = rows[number % len(rows)]
        at = (number // len(rows) * period + row.arrival_seconds) / speed_up
        if at < seconds:
            groups[row.tenant, int(at // _BESIDE_SECONDS)].append(row)
    classes = {tenant: _class_of(generator) if tenant else Priority.NORMAL for tenant, _ in groups}
    return [
        _batch(
            number,
            _BESIDE_SECONDS * (minute + 1),
            tenant=f"beside {tenant}",
            lines=own,
            priority=classes[tenant],
        )
        for number, ((tenant, minute), own) in enumerate(groups.items(), start=first_number)
    ]


def _batch(number: int, at: float, *, tenant: str, lines: Sequence[TraceRow], priority: Priority) -> SimulatedBatch:
    return SimulatedBatch(
        number=number,
        tenant=tenant,
        weight=1.0,
        priority=priority,
        arrival_seconds=at,
        lines=[SimulatedLine(row.num_prompt_tokens, row.num_output_tokens) for row in lines],
        max_tokens=1 << (max(row.num_output_tokens for row in lines) - 1).bit_length(),
    )


def forecast_all(load: Load) -> Run:
    """Run the batches and forecast all of them every LOOK_SECONDS, as a dispatcher does."""
    config = SchedulerConfig(
        max_num_seqs=_MAX_SEQS,
        max_num_batched_tokens=_MAX_BATCHED_TOKENS,
        max_model_len=study.MAX_MODEL_LEN,
        policy=PolicyName.PRIORITY,
    )
    cost = CoarseCost(cost=COST, stride=_STRIDE)
    simulator = BatchSimulator(cost, config, num_workers=NUM_WORKERS, num_kv_blocks=_KV_BLOCKS // _STRIDE)
    run = Run(load=load)
    watcher = _Watcher(simulator, run)
    simulator.run(load.batches, every_seconds=LOOK_SECONDS, look=watcher.look)
    last_end = max(batch.end_seconds for batch in load.batches)
    run.busy = simulator.busy_seconds / NUM_WORKERS / last_end
    return run


class _Watcher:
    """Takes the place of the database behind `jobs.forecasts.snapshot`."""

    def __init__(self, simulator: BatchSimulator, run: Run) -> None:
        self._simulator = simulator
        self._run = run
        self._state = ModelState()
        self._looked_at: float | None = None
        self._num_seen_tokens = 0
        self._kept: dict[str, History] = {}
        self._by_id = {str(batch.number): batch for batch in run.load.batches}
        self._measured = {batch.number for batch in run.load.measured}

    def look(self, now: float) -> None:
        """Measure the workers and forecast every open batch."""
        ended_tokens = self._simulator.num_finished_tokens - self._num_seen_tokens
        self._num_seen_tokens += ended_tokens
        running = self._simulator.running()
        seen = Seen(
            now=now,
            seconds=0.0 if self._looked_at is None else now - self._looked_at,
            ended_tokens=ended_tokens,
            num_workers=NUM_WORKERS,
            batches=[self._seen(batch, *running.get(batch.number, (0, 0))) for batch in self._simulator.batches],
            ended=list(self._pop_ended()),
        )
        self._looked_at = now
        self._state, outcomes = look(self._state, seen)
        for outcome in outcomes:
            self._kept[outcome.found.batch_id] = outcome.history
            self._note(self._by_id[outcome.found.batch_id], outcome, now)

    def _note(self, batch: SimulatedBatch, outcome: Outcome, now: float) -> None:
        if batch.number in self._measured:
            for stage in STAGES:
                if batch.num_finished >= stage * len(batch.lines):
                    self._run.told.setdefault((batch.number, stage), (now, outcome))

    def _pop_ended(self) -> Iterator[Ended]:
        is_open = {str(batch.number) for batch in self._simulator.batches}
        for batch_id in [batch_id for batch_id in self._kept if batch_id not in is_open]:
            yield Ended(history=self._kept.pop(batch_id), ended_at=self._by_id[batch_id].end_seconds)

    def _seen(self, batch: SimulatedBatch, num_running: int, num_generated: int) -> BatchSeen:
        return BatchSeen(
            load=BatchLoad(
                batch_id=str(batch.number),
                tenant_id=batch.tenant,
                priority=batch.priority,
                weight=batch.weight,
                virtual_time=self._simulator.virtual_time(batch),
                expires_at=batch.expires_at,
            ),
            estimated_tokens=batch.estimated_tokens / len(batch.lines),
            estimated_output_tokens=batch.max_tokens,
            num_computed=batch.num_finished,
            used_tokens=batch.used,
            output_tokens=batch.output_tokens,
            ready_lines=len(batch.lines) - batch.num_claimed,
            leased_lines=batch.num_claimed - batch.num_finished,
            running_lines=num_running,
            begun_output_tokens=num_generated,
            part_done=batch.num_finished / len(batch.lines),
            is_waiting=False,
            history=self._kept.get(str(batch.number)),
        )


def table(run: Run) -> str:
    """Return how often intervals held, how wide they were and the error of the expected ends, in Markdown."""
    lines = [
        "| forecast at | batches | left, median s | end in the interval | before it | after it | "
        "width ÷ time left, median | error of `eta`, median | nine in ten within |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [_row(stage, list(run.answers(stage))) for stage in STAGES]
    return "\n".join(lines) + "\n"


def _row(stage: float, answers: Sequence[Answer]) -> str:
    if not answers:
        return f"| {stage:.0%} | 0 |" + " |" * 7
    errors = [abs(one.seconds - one.actual) / one.actual for one in answers]
    widths = [(one.latest - one.earliest) / one.actual for one in answers]

    def part(is_so: Callable[[Answer], bool]) -> str:
        return f"{sum(map(is_so, answers)) / len(answers):.0%}"

    return (
        f"| {stage:.0%} | {len(answers)} | {np.median([one.actual for one in answers]):.0f} | "
        f"{part(lambda one: one.holds)} | {part(lambda one: one.actual < one.earliest)} | "
        f"{part(lambda one: one.actual > one.latest)} | {np.median(widths):.0%} | {np.median(errors):.0%} | "
        f"{np.quantile(errors, 0.9):.0%} |"
    )
