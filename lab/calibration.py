"""Measure an engine's steps, fit a cost model to them, and compare its predictions with a measured run. CPU or GPU.

Speculation is off here: the simulator computes no tokens, so it cannot know which drafts would be right.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count

from benchmarks.workload import WorkloadRequest
from engine.build import build_engine
from engine.config import EngineConfig, SchedulerConfig
from engine.loop.core import Engine
from engine.params import SamplingParams
from engine.scheduling.request import NewRequest
from engine.scheduling.step_load import StepLoad, load_of
from lab.make_workload import Lengths, random_requests
from lab.simulation.cost import CostModel, MeasuredCost, fit_measured_cost
from lab.simulation.sequences import SimulatedRequest
from lab.simulation.simulator import SimulationResult, Simulator


@dataclass(slots=True)
class MeasuredRun:
    """The sizes and durations of a run's steps, and the run's total time."""

    scheduler: SchedulerConfig
    num_kv_blocks: int
    block_size: int
    loads: list[StepLoad] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    wall_seconds: float = 0.0
    num_output_tokens: int = 0

    @property
    def output_tokens_per_second(self) -> float:
        """Return the generated tokens per second of the whole run."""
        return self.num_output_tokens / self.wall_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A measured run beside its simulation."""

    measured_tokens_per_second: float
    predicted_tokens_per_second: float
    measured_steps: int
    predicted_steps: int
    measured_seconds_in_steps: float
    predicted_seconds_in_steps: float
    measured_wall_seconds: float
    predicted_wall_seconds: float
    fit_error: float
    """The model's error over its own calibration run."""

    @property
    def error(self) -> float:
        """Return the error of the predicted throughput as a share of the measured one; positive is too high."""
        return self.predicted_tokens_per_second / self.measured_tokens_per_second - 1.0


def measure_steps(
    config: EngineConfig,
    phases: Sequence[Sequence[WorkloadRequest]],
    clock: Callable[[], float] = time.perf_counter,
) -> MeasuredRun:
    """Load the model, replay workloads one after another in real time and record each step, with speculation off.

    With `time.process_time` as the clock and one thread, a busy machine gives about the same times as an idle one; all
    arrivals must be 0 then.
    """
    engine = build_engine(config)
    run = MeasuredRun(
        scheduler=engine.scheduler.config,
        num_kv_blocks=engine.info.num_kv_blocks,
        block_size=engine.info.block_size,
    )
    request_ids = count()
    for requests in phases:
        _replay(engine, requests, request_ids, run, clock)
    run.num_output_tokens = engine.stats().requests.num_output_tokens
    return run


def _replay(
    engine: Engine,
    requests: Sequence[WorkloadRequest],
    request_ids: Iterator[int],
    run: MeasuredRun,
    clock: Callable[[], float],
) -> None:
    began = clock()
    num_added = 0
    while num_added < len(requests) or engine.has_work:
        now = clock() - began
        while num_added < len(requests) and requests[num_added].arrival_seconds <= now:
            request = requests[num_added]
            params = SamplingParams(temperature=0.0, max_tokens=request.max_tokens, ignore_eos=request.ignore_eos)
            engine.add(
                NewRequest(request_id=next(request_ids), prompt_token_ids=request.prompt_token_ids, params=params)
            )
            num_added += 1
        if engine.has_work:
            _measure_step(engine, run, clock)
        else:
            time.sleep(max(0.0, requests[num_added].arrival_seconds - now))
    run.wall_seconds += clock() - began


def calibrate(
    config: EngineConfig, phases: Sequence[Sequence[WorkloadRequest]], clock: Callable[[], float] = time.perf_counter
) -> tuple[MeasuredCost, MeasuredRun]:
    """Run workloads one after another and fit a cost model to their steps."""
    run = measure_steps(config, phases, clock)
    return fit_measured_cost(run.loads, run.step_seconds), run


_FEW_PROMPTS = ((1, 12), (1, 120), (1, 600), (2, 50), (3, 20), (4, 100), (5, 150), (8, 24), (12, 48), (48, 12))
"""Number of simultaneous requests and tokens of each prompt: steps that the prompts do not fill."""

_LENGTHS = (((8, 24), (8, 192), 1), ((300, 500), (8, 192), 0.5), ((900, 1000), (8, 192), 0.25), ((8, 96), (2, 64), 2))
"""Ranges of prompt and output tokens, and the number of requests as a multiple."""

_PREFIXES = ((700, 0.5), (250, 1))
"""Prompt tokens that all requests of a phase share, and the number of requests as a multiple."""


def calibration_workload(vocab_size: int, *, num_requests: int = 128, seed: int = 99) -> list[list[WorkloadRequest]]:
    """Return phases of requests whose steps have many sizes; all requests of a phase arrive at its start.

    Short, long and very long prompts with heavy-tailed outputs, whose batch first is full of prompts, then of single
    tokens, and empties slowly; more requests than seats; prompts with long shared prefixes; and a few prompts alone. A
    fit can only separate what varies independently: if every step with prompts were full, a token would seem to cost
    nothing and a step everything. The model's context must hold 1,200 tokens.
    """
    generator = random.Random(seed)

    def texts(length: int) -> list[int]:
        return [generator.randrange(vocab_size) for _ in range(length)]

    def request(prompt_token_ids: list[int], max_tokens: int) -> WorkloadRequest:
        return WorkloadRequest(
            prompt_token_ids=prompt_token_ids, max_tokens=max_tokens, ignore_eos=True, arrival_seconds=0.0
        )

    phases = []
    for prompt_tokens, output_tokens, multiple in _LENGTHS:
        lengths = Lengths(
            num_requests=int(num_requests * multiple),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            tail=0.7,
        )
        bodies = random_requests(lengths, vocab_size=vocab_size, seed=seed)
        phases.append([WorkloadRequest(**body) for body in bodies])
    for num_common, multiple in _PREFIXES:
        common = texts(num_common)
        pairs = [(generator.randint(8, 64), generator.randint(8, 64)) for _ in range(int(num_requests * multiple))]
        phases.append([request(common + texts(length), max_tokens) for length, max_tokens in pairs])
    return phases + [[request(texts(length), 3) for _ in range(size)] for size, length in _FEW_PROMPTS]


def predict(cost: CostModel, requests: Sequence[WorkloadRequest], run: MeasuredRun) -> SimulationResult:
    """Simulate a workload on an engine of the same size as in the measured run."""
    simulator = Simulator(cost, run.scheduler, num_kv_blocks=run.num_kv_blocks, block_size=run.block_size)
    return simulator.run(as_simulated(requests, block_size=run.block_size))


def validate(
    config: EngineConfig,
    requests: Sequence[WorkloadRequest],
    phases: Sequence[Sequence[WorkloadRequest]],
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[MeasuredCost, Prediction]:
    """Calibrate on some workloads, predict another, measure it too, and return the fitted cost and both figures."""
    cost, calibrated = calibrate(config, phases, clock)
    fitted = sum(cost.seconds(load) for load in calibrated.loads)
    run = measure_steps(config, [requests], clock)
    result = predict(cost, requests, run)
    return cost, Prediction(
        measured_tokens_per_second=run.output_tokens_per_second,
        predicted_tokens_per_second=result.output_tokens_per_second,
        measured_steps=len(run.loads),
        predicted_steps=result.counters.num_steps,
        measured_seconds_in_steps=sum(run.step_seconds),
        predicted_seconds_in_steps=result.busy_seconds,
        measured_wall_seconds=run.wall_seconds,
        predicted_wall_seconds=result.seconds,
        fit_error=fitted / sum(calibrated.step_seconds) - 1.0,
    )


def as_simulated(requests: Sequence[WorkloadRequest], *, block_size: int) -> list[SimulatedRequest]:
    """Return a workload as counts; requests whose first block is the same share their longest common prefix.

    Outputs are assumed to have max_tokens tokens, which holds for requests that ignore the end of the sequence.
    """
    groups: dict[tuple[int, ...], list[list[int]]] = defaultdict(list)
    for request in requests:
        groups[tuple(request.prompt_token_ids[:block_size])].append(request.prompt_token_ids)
    common = {first: _num_in_common(prompts) for first, prompts in groups.items()}
    simulated = []
    for request in requests:
        first = tuple(request.prompt_token_ids[:block_size])
        simulated.append(
            SimulatedRequest(
                arrival_seconds=request.arrival_seconds,
                num_prompt_tokens=len(request.prompt_token_ids),
                num_output_tokens=request.max_tokens,
                max_tokens=request.max_tokens,
                has_known_length=request.ignore_eos,
                prefix=repr(first) if common[first] >= block_size else "",
                num_prefix_tokens=common[first],
            )
        )
    return simulated


def report(cost: MeasuredCost, prediction: Prediction) -> dict[str, object]:
    """Return everything as plain values, for JSON."""
    return {"cost": asdict(cost), **asdict(prediction), "error": prediction.error}


def _measure_step(engine: Engine, run: MeasuredRun, clock: Callable[[], float]) -> None:
    num_steps = engine.stats().scheduler.num_steps
    began = clock()
    engine.step()
    took = clock() - began
    if engine.stats().scheduler.num_steps > num_steps:
        run.loads.append(load_of(engine.scheduler.last_plan))
        run.step_seconds.append(took)


def _num_in_common(prompts: list[list[int]]) -> int:
    if len(prompts) == 1:
        return 0
    shortest, longest = min(prompts), max(prompts)  # in lexical order, these two differ earliest
    pairs = zip(shortest, longest, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(shortest), len(longest)))
