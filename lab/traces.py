"""Read request traces (CSV: arrival_s, prompt_tokens, output_tokens and, if there are tenants, client) for replays.

A trace has no texts, limits, priorities or deadlines; they are generated here from a seed, the same for every policy.
"""

from __future__ import annotations

import csv
import gzip
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

from lab.simulation.sequences import SimulatedRequest

PRIORITY_SHARES = {0: 0.1, 1: 0.3, 2: 0.6}
DEADLINE_SHARES = {15.0: 0.2, 60.0: 0.3, 300.0: 0.5}
"""Seconds from arrival to deadline, and the share of requests that have it."""
_LEAST_MAX_TOKENS = 16
_Number = TypeVar("_Number", int, float)


class TraceError(ValueError):
    """A trace is missing, or one of its rows is not a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One request of a trace."""

    arrival_seconds: float
    num_prompt_tokens: int
    num_output_tokens: int
    tenant: str
    """Empty if the trace has no tenants."""


def read_trace(path: Path) -> list[TraceRow]:
    """Return a trace's rows in order of arrival. Raises TraceError with the line's number."""
    if not path.is_file():
        raise TraceError(f"There is no trace at {path}.")
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        rows = [_parse(row, number, path) for number, row in enumerate(csv.DictReader(lines), start=2)]
    if not rows:
        raise TraceError(f"{path} has no requests.")
    return sorted(rows, key=lambda row: row.arrival_seconds)


def requests_of(
    rows: list[TraceRow], *, speed_up: float, count: int | None = None, seed: int = 0
) -> Iterator[SimulatedRequest]:
    """Yield the trace's requests, compressed in time by `speed_up`; the trace is repeated at its end.

    Generated: max_tokens is the next power of two from the true output length, at least 16; priorities and deadlines
    are drawn by the shares above; every tenant's prompts share a prefix half as long as its median prompt.
    """
    generator = random.Random(seed)
    prefixes = _prefix_lengths(rows)
    period = rows[-1].arrival_seconds + 1.0
    for number in range(len(rows) if count is None else count):
        row = rows[number % len(rows)]
        arrival = (number // len(rows) * period + row.arrival_seconds) / speed_up
        yield SimulatedRequest(
            arrival_seconds=arrival,
            num_prompt_tokens=row.num_prompt_tokens,
            num_output_tokens=row.num_output_tokens,
            max_tokens=max(_LEAST_MAX_TOKENS, 1 << (row.num_output_tokens - 1).bit_length()),
            priority=_draw(generator, PRIORITY_SHARES),
            deadline=arrival + _draw(generator, DEADLINE_SHARES),
            tenant=row.tenant,
            prefix="instructions" if row.tenant else "",
            num_prefix_tokens=min(prefixes[row.tenant], row.num_prompt_tokens) if row.tenant else 0,
        )


def _prefix_lengths(rows: list[TraceRow]) -> dict[str, int]:
    lengths: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        lengths[row.tenant].append(row.num_prompt_tokens)
    return {tenant: int(median(own)) // 2 for tenant, own in lengths.items()}


def _draw(generator: random.Random, shares: dict[_Number, float]) -> _Number:
    return generator.choices(list(shares), weights=list(shares.values()))[0]


def _parse(row: dict[str, str], number: int, path: Path) -> TraceRow:
    try:
        return TraceRow(
            arrival_seconds=float(row["arrival_s"]),
            num_prompt_tokens=max(1, int(row["prompt_tokens"])),
            num_output_tokens=max(1, int(row["output_tokens"])),
            tenant=row.get("client") or "",
        )
    except (ValueError, TypeError, KeyError) as error:
        raise TraceError(f"{path} line {number} is not a request: {error!r}.") from error
