"""Days of two models on one or two GPUs that serve one of them at a time, under the rule and other policies.

The models have opposite days: one's requests come by day, the other's by night. Queues are those of `week`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jobs.forecasts.finish_times import forecast
from jobs.scaling.next_model import Demand, next_model
from jobs.scaling.rule import Due, decisive
from jobs.states import Priority
from lab.autoscaling.load import WINDOW_SECONDS, WORKER_TOKENS, make_batches
from lab.autoscaling.policies import EXPECTED_RATE
from lab.autoscaling.week import ASKED_SECONDS, STARTUP_SECONDS, STEP_SECONDS, Queue
from lab.simulation.simulated_batches import EPOCH

MODELS = ("day", "night")
_SWING = 0.8
"""Of the rates over a day, around their mean."""
_DAY_SECONDS = 86_400.0
_TURN_SECONDS = 3600.0
_LEAST_SECONDS = 600.0
"""How long a GPU serves a model at least before it looks for a longer queue."""


@dataclass(slots=True)
class Gpu:
    """What a GPU serves, and from when on."""

    number: int
    model: str | None = None
    ready_at: float = 0.0
    num_switches: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a policy knows when it is asked for one GPU."""

    now: float
    gpu: Gpu
    gpus: Sequence[Gpu]
    queues: Mapping[str, Queue]
    start_seconds: float


Policy = Callable[[Seen], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy's days."""

    num_gpus: int
    seed: int
    policy: str
    num_batches: int
    num_met: int
    num_switches: int
    lost_share: float
    """Of all GPU time, that of switches."""


def run(*, num_gpus: Sequence[int], seeds: Sequence[int], load: float, days: int) -> Iterator[Row]:
    """Yield the rows of each number of GPUs and seed; `load` is their work ÷ what they compute without a switch."""
    for number in num_gpus:
        for seed in seeds:
            for name, policy, start_seconds in _POLICIES:
                own = Days(num_gpus=number, seed=seed, load=load, days=days, start_seconds=start_seconds)
                yield own.run(name, policy)


def by_deadlines(seen: Seen) -> str:
    """The service's rule, asked as a worker asks it."""
    served_seconds = max(0.0, seen.now - seen.gpu.ready_at)
    demands = [_demand(seen, model) for model in MODELS]
    return next_model(demands, serving=seen.gpu.model, served_seconds=served_seconds, now=seen.now)


def _demand(seen: Seen, model: str) -> Demand:
    queue = seen.queues[model]
    loads = queue.loads()
    deadlines = {load.batch_id: (load.expires_at - EPOCH).total_seconds() for load in loads}
    dues = [Due(at=deadlines[found.batch_id], tokens=found.tokens) for found in forecast(loads)]
    return Demand(
        model=model,
        start_seconds=seen.start_seconds,
        dues={Priority.NORMAL: decisive(dues, now=seen.now)} if dues else {},
        rate=queue.rate.tokens_per_second or EXPECTED_RATE,
        others=sum(gpu.model == model for gpu in seen.gpus if gpu is not seen.gpu),
    )


def fixed(seen: Seen) -> str:
    """A GPU for each model, as far as there are; one GPU serves both in turns of an hour."""
    turn = seen.gpu.number if len(seen.gpus) > 1 else int(seen.now // _TURN_SECONDS)
    return MODELS[turn % len(MODELS)]


def by_queue_length(seen: Seen) -> str:
    """The model with the most waiting work for each GPU that serves it; asked again after a while, or without work."""
    own = seen.gpu.model
    waiting = {model: sum(load.ready_tokens for load in queue.loads()) for model, queue in seen.queues.items()}
    if own is not None and waiting[own] and seen.now - seen.gpu.ready_at < _LEAST_SECONDS:
        return own
    others = {model: sum(gpu.model == model for gpu in seen.gpus if gpu is not seen.gpu) for model in MODELS}
    longest = max(MODELS, key=lambda model: (waiting[model] / (1 + others[model]), model == own))
    return longest if waiting[longest] else own or longest


_POLICIES = (
    ("deadlines", by_deadlines, STARTUP_SECONDS),
    ("fixed", fixed, STARTUP_SECONDS),
    ("longest queue", by_queue_length, STARTUP_SECONDS),
    ("deadlines, switches take no time", by_deadlines, 0.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Days:
    """What one run is about."""

    num_gpus: int
    seed: int
    load: float
    days: int
    start_seconds: float

    def run(self, name: str, policy: Policy) -> Row:
        """Run the days, and on until no batch is open."""
        queues = {model: self._queue(place) for place, model in enumerate(MODELS)}
        gpus = [Gpu(number) for number in range(self.num_gpus)]
        now, asked_at = 0.0, 0.0
        while now < self.days * _DAY_SECONDS or any(queue.num_open for queue in queues.values()):
            for queue in queues.values():
                queue.admit(now)
            if now >= asked_at:
                asked_at = now + ASKED_SECONDS
                for gpu in gpus:
                    seen = Seen(now=now, gpu=gpu, gpus=gpus, queues=queues, start_seconds=self.start_seconds)
                    _serve(gpu, policy(seen) if gpu.ready_at <= now else gpu.model, now, self.start_seconds)
            for model, queue in queues.items():
                num_ready = sum(gpu.model == model and gpu.ready_at <= now for gpu in gpus)
                speed = num_ready * WORKER_TOKENS
                queue.compute(now, tokens_per_second=speed, num_workers=num_ready, step_seconds=STEP_SECONDS)
            now += STEP_SECONDS
        num_switches = sum(gpu.num_switches for gpu in gpus)
        return Row(
            num_gpus=self.num_gpus,
            seed=self.seed,
            policy=name,
            num_batches=sum(queue.num_batches for queue in queues.values()),
            num_met=sum(queue.num_met for queue in queues.values()),
            num_switches=num_switches,
            lost_share=num_switches * self.start_seconds / (self.num_gpus * now),
        )

    def _queue(self, place: int) -> Queue:
        """Return the queue of one model: its rates swing over the day against those of the other."""
        sign = 1 - 2 * place
        times = [number * WINDOW_SECONDS for number in range(round(self.days * _DAY_SECONDS / WINDOW_SECONDS))]
        rates = [1 + sign * _SWING * math.sin(2 * math.pi * at / _DAY_SECONDS) for at in times]
        mean_workers = self.load * self.num_gpus / len(MODELS)
        return Queue(make_batches(rates, mean_workers=mean_workers, seed=self.seed * len(MODELS) + place))


def _serve(gpu: Gpu, model: str | None, now: float, start_seconds: float) -> None:
    if model != gpu.model:
        gpu.num_switches += 1
        gpu.model, gpu.ready_at = model, now + start_seconds


HEADER = (
    "| GPUs, seed | policy | deadlines met | of all | switches | time lost to them |\n"
    "| --- | --- | --- | --- | --- | --- |"
)


def line(row: Row) -> str:
    """Return a row of the table."""
    return (
        f"| {row.num_gpus}, {row.seed} | {row.policy} | {row.num_met:,} | {row.num_met / row.num_batches:.2%} | "
        f"{row.num_switches:,} | {row.lost_share:.1%} |"
    )
