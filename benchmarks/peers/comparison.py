"""Ratios between the runs of one workload. Runs nothing, prints nothing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.peers.catalogue import OURS
from benchmarks.peers.runs import Failure, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One engine on one workload."""

    peer: str
    version: str = ""
    num_runs: int = 0
    tokens_per_second: float | None = None
    """The median of its runs; None where one of them failed."""
    cpu_seconds: float | None = None
    ratio: float | None = None
    """Ours over theirs."""
    same_tokens: float | None = None
    """The share of requests whose first token is the one that ours gave: far below one, it is not the same model."""
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The rows of one workload, ours first."""

    workload: str
    rows: list[Row]
    drift: float | None
    """The last of our runs over the first: one on a steady machine."""
    best_peer: str | None
    best_ratio: float | None
    """Ours over the fastest peer that did not fail; None where there is none, or where ours failed."""

    @property
    def has_failures(self) -> bool:
        return any(row.failure is not None for row in self.rows)


def compare(workload: str, runs: Sequence[Run | Failure]) -> Comparison:
    """Put the runs of one workload, in the order they were made, beside ours."""
    names = list(dict.fromkeys([OURS.name, *(run.peer for run in runs)]))
    ours = [run for run in runs if run.peer == OURS.name and isinstance(run, Run)]
    our_rate = _rate(runs, OURS.name)
    rows = [_row(name, runs, our_rate=our_rate, first=ours[0] if ours else None) for name in names]
    others = [row for row in rows[1:] if row.tokens_per_second is not None]
    best = max(others, key=lambda row: row.tokens_per_second or 0.0, default=None)
    return Comparison(
        workload=workload,
        rows=rows,
        drift=ours[-1].tokens_per_second / ours[0].tokens_per_second if len(ours) > 1 else None,
        best_peer=best.peer if best else None,
        best_ratio=best.ratio if best else None,
    )


def _rate(runs: Sequence[Run | Failure], name: str) -> float | None:
    """Return the median; None where a run of this engine failed, so that no figure rests on the luckier ones."""
    mine = [run for run in runs if run.peer == name]
    rates = [run.tokens_per_second for run in mine if isinstance(run, Run)]
    return statistics.median(rates) if rates and len(rates) == len(mine) else None


def _row(name: str, runs: Sequence[Run | Failure], *, our_rate: float | None, first: Run | None) -> Row:
    mine = [run for run in runs if run.peer == name]
    done = [run for run in mine if isinstance(run, Run)]
    failures = [run.reason for run in mine if isinstance(run, Failure)]
    rate = _rate(runs, name)
    return Row(
        peer=name,
        version=done[0].version if done else "",
        num_runs=len(mine),
        tokens_per_second=rate,
        cpu_seconds=statistics.median(run.cpu_seconds for run in done) if done else None,
        ratio=our_rate / rate if our_rate is not None and rate is not None else None,
        same_tokens=_same_tokens(first, done[0]) if first and done else None,
        failure=failures[0] if failures else None,
    )


def _same_tokens(ours: Run, theirs: Run) -> float:
    pairs = list(zip(ours.outputs, theirs.outputs, strict=True))
    return sum(mine[:1] == other[:1] for mine, other in pairs) / len(pairs)
