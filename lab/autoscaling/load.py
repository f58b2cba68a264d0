"""Batches with deadlines, from a public trace of request rates: seeded, the same for every policy."""

from __future__ import annotations

import csv
import gzip
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.traces import TraceError

WINDOW_SECONDS = 600.0
WEEK_SECONDS = 7 * 86_400.0
WORKER_TOKENS = 10_000.0
"""Tokens a second of a worker: an 8B model on one GPU."""
NUM_TENANTS = 10
_DEADLINES = {1_800.0: 0.2, 7_200.0: 0.3, 86_400.0: 0.5}
"""Seconds from a batch's arrival, and the share of batches: the windows of llm-d's batch benchmark, our shares."""
_BATCHES_A_WINDOW = 3
_LINE_TOKENS = 500.0
_ESTIMATE = (1.6, 0.3)
"""Estimated tokens ÷ used ones of a batch, median and sigma: before a line has ended, its answer's limit counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBatch:
    """One batch."""

    at: float
    deadline: float
    tenant: int
    tokens: float
    """That its lines will use."""
    estimated_tokens: float
    num_lines: int


def read_rates(path: Path, service: str) -> list[float]:
    """Return the requests a second of one service in each ten minutes of a week. Raises TraceError."""
    if not path.is_file():
        raise TraceError(f"There is no trace at {path}.")
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        try:
            rows = [
                (row["service"], float(row["window_start_s"]), float(row["rate_rps"])) for row in csv.DictReader(lines)
            ]
        except (KeyError, ValueError, TypeError) as error:
            raise TraceError(f"{path} has no rates of services in windows: {error!r}.") from error
    rates = [rate for name, start, rate in rows if name == service and start < WEEK_SECONDS]
    if len(rates) * WINDOW_SECONDS < WEEK_SECONDS:
        names = ", ".join(sorted({name for name, _, _ in rows}))
        raise TraceError(f"{path} has {len(rates)} windows of {service!r}, less than a week. It has {names}.")
    return rates


def make_batches(rates: Sequence[float], *, mean_workers: float, seed: int) -> list[LoadBatch]:
    """Make a week's batches with work for `mean_workers`, distributed over time like the requests."""
    generator = random.Random(seed)
    scale = mean_workers * WORKER_TOKENS * WINDOW_SECONDS * len(rates) / sum(rates)
    batches, left = [], 0.0
    for number, rate in enumerate(rates):
        tokens, left = left + rate * scale, 0.0
        weights = [generator.lognormvariate(0, 1) for _ in range(_number(generator))]
        if not weights:
            left = tokens
        start = number * WINDOW_SECONDS
        batches += [_batch(generator, start, tokens * weight / sum(weights)) for weight in weights]
    return sorted((batch for batch in batches if batch.tokens >= 1), key=lambda batch: batch.at)


def _batch(generator: random.Random, start: float, tokens: float) -> LoadBatch:
    at = start + generator.uniform(0, WINDOW_SECONDS)
    seconds = generator.choices(list(_DEADLINES), weights=list(_DEADLINES.values()))[0]
    median, sigma = _ESTIMATE
    return LoadBatch(
        at=at,
        deadline=at + seconds,
        tenant=generator.randrange(NUM_TENANTS),
        tokens=tokens,
        estimated_tokens=tokens * median * generator.lognormvariate(0, sigma),
        num_lines=max(1, round(tokens / _LINE_TOKENS)),
    )


def _number(generator: random.Random) -> int:
    """Draw the number of batches of a window, of a Poisson distribution."""
    return sum(1 for _ in _arrivals(generator))


def _arrivals(generator: random.Random) -> Iterator[float]:
    at = generator.expovariate(_BATCHES_A_WINDOW)
    while at < 1:
        yield at
        at += generator.expovariate(_BATCHES_A_WINDOW)
