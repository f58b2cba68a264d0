"""The report of a workload's run, as a table and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from benchmarks.workload import WorkloadRequest
from engine.stats import EngineStats, Histogram, measured


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputReport:
    """Measurements of one run. Shares are fractions of one."""

    name: str
    num_requests: int
    num_failed: int
    prompt_tokens: int
    """Without those of failed requests."""
    output_tokens: int
    wall_seconds: float
    cpu_seconds: float
    """The process's CPU time: compare this on a busy machine."""
    output_tokens_per_second: float
    total_tokens_per_second: float
    steps: int = 0
    mean_batch: float = 0.0
    kv_use: float = 0.0
    """A mean over the steps, as is `kv_waste`."""
    kv_waste: float = 0.0
    preemptions: int = 0
    prefix_hit_tokens: int = 0
    drafted_tokens: int = 0
    acceptance_rate: float = 0.0
    joules_per_output_token: float | None = None
    """Energy of the whole GPU, including prefill and idle time; None if it is not measured."""
    first_error: str | None = None
    """Error of the first failed request."""
    counters: dict[str, float] = field(default_factory=dict)
    """Every metric that workers export, by its name; only in JSON."""


_COMPARED = (
    "name",
    "output_tokens_per_second",
    "total_tokens_per_second",
    "wall_seconds",
    "cpu_seconds",
    "steps",
    "mean_batch",
    "joules_per_output_token",
)


def speedups(reports: list[ThroughputReport]) -> dict[str, float]:
    """Return the speed of the first report relative to the second, and to the best of each other kind."""
    first, *others = reports
    rates = {report.name: report.output_tokens_per_second for report in others[:1]}
    for report in others:
        kind = f"{report.name.rsplit('-', 1)[0]} at its best"
        rates[kind] = max(rates.get(kind, 0.0), report.output_tokens_per_second)
    return {name: first.output_tokens_per_second / rate for name, rate in rates.items()}


def render(reports: list[ThroughputReport]) -> str:
    """Return the reports as a table, one row each, and the ratios; values that all reports lack are omitted."""
    names = [
        one.name
        for one in fields(ThroughputReport)
        if one.name != "counters" and any(getattr(report, one.name) is not None for report in reports)
    ]
    cells = [names] + [[_cell(getattr(report, name)) for name in names] for report in reports]
    if len(reports) == 1:
        return "\n".join(f"{name:>26}  {value}" for name, value in zip(*cells, strict=True))
    shown = [names.index(name) for name in _COMPARED if name in names]
    lines = ["  ".join(f"{row[index]:>26}" for index in shown) for row in cells]
    ratios = [f"{reports[0].name} is {ratio:.2f} x {kind}" for kind, ratio in speedups(reports).items()]
    return "\n".join(lines + ratios)


def make_report(
    name: str,
    requests: list[WorkloadRequest],
    errors: dict[int, str],
    *,
    times: dict[str, float],
    stats: EngineStats | None,
) -> ThroughputReport:
    """Report a run; `errors` are those of failed requests, by index; `stats` is None if our engine did not run."""
    prompt_tokens = sum(len(request.prompt_token_ids) for index, request in enumerate(requests) if index not in errors)
    output_tokens = stats.requests.num_output_tokens if stats else sum(request.max_tokens for request in requests)
    return ThroughputReport(
        name=name,
        num_requests=len(requests),
        num_failed=len(errors),
        first_error=next(iter(errors.values()), None),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        wall_seconds=times["wall_seconds"],
        cpu_seconds=times["cpu_seconds"],
        output_tokens_per_second=output_tokens / times["wall_seconds"],
        total_tokens_per_second=(prompt_tokens + output_tokens) / times["wall_seconds"],
        **_engine_fields(stats),
    )


def _engine_fields(stats: EngineStats | None) -> dict[str, Any]:
    if stats is None:
        return {}
    return {
        "steps": stats.scheduler.num_steps,
        "mean_batch": stats.scheduler.mean_batch,
        "kv_use": stats.mean_kv_use,
        "kv_waste": stats.cache.waste,
        "preemptions": stats.scheduler.num_preemptions,
        "prefix_hit_tokens": stats.cache.num_cached_tokens,
        "drafted_tokens": stats.speculation.num_drafted,
        "acceptance_rate": stats.speculation.acceptance_rate,
        "joules_per_output_token": _per_output_token(stats.energy.num_joules, stats),
        "counters": {name: value for name, value in measured(stats) if not isinstance(value, Histogram)},
    }


def _per_output_token(joules: float | None, stats: EngineStats) -> float | None:
    return None if joules is None else joules / max(1, stats.requests.num_output_tokens)


def as_json(reports: list[ThroughputReport]) -> str:
    """Return the reports, and if there are several the ratios, in the format of `--json`."""
    body: dict[str, Any] = {"runs": [asdict(report) for report in reports]}
    if len(reports) > 1:
        body["speedups"] = speedups(reports)
    return json.dumps(body, indent=2)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
