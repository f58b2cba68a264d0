"""Ratios between the runs of one workload."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from lab.peers.catalogue import OURS
from lab.peers.runs import Failure, Repetition, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One engine in one precision on one workload."""

    peer: str
    dtype: str
    version: str = ""
    rates: list[float] = field(default_factory=list)
    """Output tokens per second of each repetition, in order."""
    tokens_per_second: float | None = None
    """Their median; None if a run failed."""
    cpu_seconds: float | None = None
    """The median."""
    other_cores: list[float] = field(default_factory=list)
    """Cores that other processes kept busy during each repetition."""
    ratio: float | None = None
    """Speed of our best precision over this one."""
    same_tokens: float | None = None
    """Share of requests whose first token equals ours: far below one, the models differ."""
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The rows of one workload, ours first."""

    workload: str
    rows: list[Row]
    drift: float | None
    """Speed of our last run over our first: one on a steady machine."""
    best_peer: str | None
    """With its precision."""
    best_ratio: float | None
    """Speed of our best precision over the fastest peer's best; None if no peer ran well, or ours failed in every
    one."""

    @property
    def has_failures(self) -> bool:
        return any(row.failure is not None for row in self.rows)


def compare(workload: str, runs: Sequence[Run | Failure]) -> Comparison:
    """Compare the runs of one workload, in the order they were made, with ours."""
    keys = sorted({(run.peer, run.dtype): None for run in runs}, key=lambda key: key[0] != OURS.name)
    ours = [run for run in runs if run.peer == OURS.name and isinstance(run, Run)]
    our_rate = max(
        (rate for peer, dtype in keys if peer == OURS.name and (rate := _rate(runs, peer, dtype))), default=None
    )
    rows = [_row(peer, dtype, runs, our_rate=our_rate, first=ours[0] if ours else None) for peer, dtype in keys]
    others = [row for row in rows if row.peer != OURS.name and row.tokens_per_second is not None]
    best = max(others, key=lambda row: row.tokens_per_second or 0.0, default=None)
    same = [run for run in ours if run.dtype == ours[0].dtype] if ours else []
    return Comparison(
        workload=workload,
        rows=rows,
        drift=same[-1].tokens_per_second / same[0].tokens_per_second if len(same) > 1 else None,
        best_peer=f"{best.peer} in {best.dtype}" if best else None,
        best_ratio=best.ratio if best else None,
    )


def _mine(runs: Sequence[Run | Failure], peer: str, dtype: str) -> list[Run | Failure]:
    return [run for run in runs if (run.peer, run.dtype) == (peer, dtype)]


def _rate(runs: Sequence[Run | Failure], peer: str, dtype: str) -> float | None:
    """Return the median, or None if a run of this engine failed, so that no figure rests on the lucky runs."""
    mine = _mine(runs, peer, dtype)
    rates = [one.tokens_per_second for one in _repetitions(mine)]
    return statistics.median(rates) if rates and all(isinstance(run, Run) for run in mine) else None


def _repetitions(runs: Sequence[Run | Failure]) -> list[Repetition]:
    return [one for run in runs if isinstance(run, Run) for one in run.repetitions]


def _row(peer: str, dtype: str, runs: Sequence[Run | Failure], *, our_rate: float | None, first: Run | None) -> Row:
    mine = _mine(runs, peer, dtype)
    completed = [run for run in mine if isinstance(run, Run)]
    failures = [run.reason for run in mine if isinstance(run, Failure)]
    rate, repetitions = _rate(runs, peer, dtype), _repetitions(mine)
    return Row(
        peer=peer,
        dtype=dtype,
        version=completed[0].version if completed else "",
        rates=[one.tokens_per_second for one in repetitions],
        tokens_per_second=rate,
        cpu_seconds=statistics.median(one.cpu_seconds for one in repetitions) if repetitions else None,
        other_cores=[one.other_cores for one in repetitions],
        ratio=our_rate / rate if our_rate is not None and rate is not None else None,
        same_tokens=_same_tokens(first, completed[0]) if first and completed else None,
        failure=failures[0] if failures else None,
    )


def _same_tokens(ours: Run, theirs: Run) -> float:
    pairs = list(zip(ours.repetitions[0].outputs, theirs.repetitions[0].outputs, strict=True))
    return sum(mine[:1] == other[:1] for mine, other in pairs) / len(pairs)
