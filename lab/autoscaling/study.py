"""The week under each policy, beside what a clairvoyant needs at least."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.autoscaling import policies
from lab.autoscaling.load import WORKER_TOKENS, LoadBatch, make_batches, read_rates
from lab.autoscaling.week import Policy, Simulation, Week

MEAN_WORKERS = 8.0
MAX_WORKERS = 64
QUEUE_SECONDS = (300.0, 600.0, 3600.0)
FIXED = (10, 12, 14, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy's week."""

    service: str
    seed: int
    policy: str
    num_met: int
    of_clairvoyant: float
    """Deadlines met, as a share of those that a clairvoyant meets."""
    gpu_hours: float
    times_clairvoyant: float
    """GPU-hours ÷ those of a clairvoyant."""
    most_workers: int
    num_lost: int
    workers: Sequence[tuple[float, int]]


def run(trace: Path, *, services: Sequence[str], seeds: Sequence[int]) -> Iterator[Row]:
    """Yield the rows of each service and seed; policies beside the rule run with the first seed only."""
    for service in services:
        rates = read_rates(trace, service)
        for seed in seeds:
            batches = make_batches(rates, mean_workers=MEAN_WORKERS, seed=seed)
            best = _clairvoyant(batches, seed=seed)
            yield _row(service, seed, "clairvoyant", week=best, best=best)
            for name, policy in _policies(is_first=seed == seeds[0]):
                yield _row(service, seed, name, week=Simulation(batches, seed=seed).run(policy), best=best)


def _policies(*, is_first: bool) -> Iterator[tuple[str, Policy]]:
    yield "deadlines", policies.by_deadlines(max_workers=MAX_WORKERS)
    if is_first:
        for seconds in QUEUE_SECONDS:
            policy = policies.by_queue_length(seconds=seconds, max_workers=MAX_WORKERS)
            yield f"queue, {seconds / 60:.0f} minutes a worker", policy
        for number in FIXED:
            yield f"{number} workers always", policies.fixed(number)


def _clairvoyant(batches: Sequence[LoadBatch], *, seed: int) -> Week:
    """Return bounds that no policy passes.

    It meets what the most workers meet that never stop, start or get lost; its workers compute all the time, and start
    and stop for nothing.
    """
    week = Simulation(batches, seed=seed, startup_seconds=0, spot_seconds=math.inf).run(policies.fixed(MAX_WORKERS))
    work = sum(batch.tokens for batch in batches)
    return Week(num_batches=len(batches), num_met=week.num_met, gpu_seconds=work / WORKER_TOKENS)


def _row(service: str, seed: int, policy: str, *, week: Week, best: Week) -> Row:
    return Row(
        service=service,
        seed=seed,
        policy=policy,
        num_met=week.num_met,
        of_clairvoyant=week.num_met / best.num_met,
        gpu_hours=week.gpu_seconds / 3600,
        times_clairvoyant=week.gpu_seconds / best.gpu_seconds,
        most_workers=max((number for _, number in week.workers), default=0),
        num_lost=week.num_lost,
        workers=week.workers,
    )


HEADER = (
    "| service, seed | policy | deadlines met | of a clairvoyant's | GPU-hours | ÷ a clairvoyant's | most workers | "
    "lost |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def line(row: Row) -> str:
    """Return a row of the table."""
    most, lost = (row.most_workers, row.num_lost) if row.workers else ("–", "–")
    return (
        f"| {row.service}, {row.seed} | {row.policy} | {row.num_met:,} | {row.of_clairvoyant:.2%} | "
        f"{row.gpu_hours:,.0f} | {row.times_clairvoyant:.2f} | {most} | {lost} |"
    )


def write(rows: Sequence[Row], path: Path) -> None:
    """Write all rows with their numbers of workers, for `lab.autoscaling.plot`."""
    path.write_text(json.dumps([asdict(row) for row in rows]))
