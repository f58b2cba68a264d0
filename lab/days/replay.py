"""Replay a recorded day in the simulator, optionally with other settings, and report each group of batches' outcome.

The cost of work is fitted to the workers' time that the day's batches took, unless a measured cost is given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.day import Day, DayBatch, DayError
from engine.config import PolicyName, SchedulerConfig
from jobs.states import Priority
from lab.simulation.batches import BatchSimulator
from lab.simulation.cost import CostModel, LinearCost
from lab.simulation.simulated_batches import SimulatedBatch, SimulatedLine


@dataclass(frozen=True, slots=True, kw_only=True)
class DaySettings:
    """The settings that can be changed."""

    num_workers: int
    policy: PolicyName = PolicyName.PRIORITY
    """Of the engine."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """By tenant; others keep theirs."""
    classes: Mapping[str, Priority] = field(default_factory=dict)
    """By tenant; each batch of other tenants keeps its own."""
    budgets: Mapping[str, int] = field(default_factory=dict)
    """In tokens, by tenant, for the whole day; others have no limit."""
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 1024
    num_kv_blocks: int = 52_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a batch, in seconds from its arrival; infinite means never."""

    tenant: str
    priority: Priority
    """As recorded, so that groups stay the same."""
    first_answer: float
    end: float
    is_late: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """The outcome of a day, recorded or simulated."""

    batches: list[Outcome]
    makespan: float
    """Seconds from the first arrival to the last end."""
    busy: float
    """Share of the makespan in which a worker worked, averaged over all."""


def happened(day: Day, *, num_workers: int) -> Outcomes:
    """Return the recorded outcome of the batches."""
    outcomes = [_outcome(batch, first_answer=batch.first_answer, end=batch.end) for batch in day.batches]
    makespan = max(batch.end for batch in day.batches) - day.batches[0].arrival
    busy = sum(batch.worker_seconds for batch in day.batches)
    return Outcomes(batches=outcomes, makespan=makespan, busy=_share(busy, makespan * num_workers))


def replayed(day: Day, settings: DaySettings, cost: CostModel) -> Outcomes:
    """Return the simulated outcome of the batches. Raises DayError if a line does not fit into the blocks at all."""
    simulated = [_simulated(number, batch, settings) for number, batch in enumerate(day.batches)]
    longest = max(line.num_prompt_tokens + batch.max_tokens for batch in simulated for line in batch.lines)
    if longest > settings.num_kv_blocks * 16:
        raise DayError(f"A line needs {longest:,} tokens, and {settings.num_kv_blocks:,} blocks of 16 hold fewer.")
    config = SchedulerConfig(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=longest + 1,
        enable_prefix_caching=False,  # cached tokens are not computed here either
        policy=settings.policy,
    )
    simulator = BatchSimulator(
        cost, config, num_workers=settings.num_workers, num_kv_blocks=settings.num_kv_blocks, limits=settings.budgets
    )
    simulator.run(list(simulated), every_seconds=math.inf, look=lambda now: None)
    outcomes = [
        _outcome(batch, first_answer=after.first_end_seconds, end=after.end_seconds)
        for batch, after in zip(day.batches, simulated, strict=True)
    ]
    first = day.batches[0].arrival
    makespan = max((batch.end_seconds for batch in simulated if batch.end_seconds < math.inf), default=first) - first
    return Outcomes(
        batches=outcomes, makespan=makespan, busy=_share(simulator.busy_seconds, makespan * settings.num_workers)
    )


def learned_cost(batches: Sequence[DayBatch]) -> LinearCost:
    """Fit the worker time per computed prompt token and per answer token, by least squares over batches.

    If the batches are too similar to separate the two, both cost the same. Raises DayError if none took any time.
    """
    tokens = np.array([_tokens(batch) for batch in batches], dtype=np.float64)
    seconds = np.array([batch.worker_seconds for batch in batches])
    if not seconds.sum() > 0:
        raise DayError("No batch of the day took any worker time. Give a cost model with --cost.")
    per_token, per_answered = seconds.sum() / tokens[:, 0].sum(), 0.0
    fitted, _, rank, _ = np.linalg.lstsq(tokens, seconds, rcond=None)
    if rank == 2 and min(fitted) >= 0 and fitted[0] > 0:
        per_token, per_answered = fitted
    return LinearCost(
        per_step=0.0,
        per_token=float(per_token),
        per_seq=0.0,
        per_context_token=0.0,
        per_shared_token=0.0,
        per_attended=0.0,
        per_logit_row=float(per_answered),
    )


def _tokens(batch: DayBatch) -> tuple[int, int]:
    """Return the tokens that the model processed and generated; an answer's last token is not processed."""
    lines = _lengths(batch)
    answered = sum(line.num_output_tokens for line in lines)
    return sum(line.num_prompt_tokens - 1 for line in lines) + answered, answered


def _lengths(batch: DayBatch) -> list[SimulatedLine]:
    """Return the computed tokens of each line: at least one of every prompt, and one of every answer."""
    return [
        SimulatedLine(max(1, prompt - cached), max(1, answered), num_cached_tokens=cached)
        for prompt, cached, answered in batch.lines
    ]


def _simulated(number: int, batch: DayBatch, settings: DaySettings) -> SimulatedBatch:
    lines = _lengths(batch)
    return SimulatedBatch(
        number=number,
        tenant=batch.tenant,
        weight=settings.weights.get(batch.tenant, batch.weight),
        priority=settings.classes.get(batch.tenant, batch.priority),
        arrival_seconds=batch.arrival,
        deadline_seconds=batch.deadline,
        lines=lines,
        max_tokens=max(batch.max_tokens, *(line.num_output_tokens for line in lines)),
    )


def _outcome(batch: DayBatch, *, first_answer: float, end: float) -> Outcome:
    return Outcome(
        tenant=batch.tenant,
        priority=batch.priority,
        first_answer=first_answer - batch.arrival,
        end=end - batch.arrival,
        is_late=end > batch.deadline,
    )


def _share(busy: float, available: float) -> float:
    return busy / available if available else 0.0


def groups(outcomes: Iterable[Outcome]) -> dict[str, list[int]]:
    """Return the indices of all batches, and those of each class and of each tenant."""
    all_batches: dict[str, list[int]] = {"all": []}
    by_tenant: dict[str, list[int]] = {}
    by_class: dict[str, list[int]] = {}
    for place, outcome in enumerate(outcomes):
        all_batches["all"].append(place)
        by_class.setdefault(f"class {outcome.priority}", []).append(place)
        by_tenant.setdefault(f"tenant {outcome.tenant}", []).append(place)
    return all_batches | dict(sorted(by_class.items())) | dict(sorted(by_tenant.items()))
