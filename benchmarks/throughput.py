"""Measure output tokens per second of the engine on a workload, alone or beside its static mode and transformers.

python -m benchmarks.throughput --model DIR --workload FILE.jsonl[.gz] [--batching static] [--compare] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.arguments import add_engine_options, engine_config, natural, naturals
from benchmarks.static_batching import Batching, load_engine
from benchmarks.workload import WorkloadError, WorkloadRequest, read_workload
from engine.config import EngineConfig, PolicyName, Speculation
from engine.core import Engine
from engine.errors import EngineError
from engine.gguf.container import is_gguf
from engine.outputs import FinishReason
from engine.params import SamplingParams
from engine.scheduling.request import NewRequest
from engine.stats import EngineStats, Histogram, measured
from engine.structured import StructuredOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputReport:
    """What one run took and did. Shares are of one."""

    name: str
    num_requests: int
    num_failed: int
    prompt_tokens: int
    """Without those of failed requests."""
    output_tokens: int
    wall_seconds: float
    cpu_seconds: float
    """The process's CPU time: on a machine that is busy with other things, compare that."""
    output_tokens_per_second: float
    total_tokens_per_second: float
    steps: int = 0
    mean_batch: float = 0.0
    kv_use: float = 0.0
    """A mean over the steps, as `kv_waste`."""
    kv_waste: float = 0.0
    preemptions: int = 0
    prefix_hit_tokens: int = 0
    drafted_tokens: int = 0
    acceptance_rate: float = 0.0
    joules_per_output_token: float | None = None
    """The whole GPU's energy, prefill and idle time included; None where nothing counts it."""
    first_error: str | None = None
    """Why the first of the failed requests failed."""
    counters: dict[str, float] = field(default_factory=dict)
    """Every number that workers export, by its metric's name; in JSON alone."""


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


class _Stopwatch:
    """Measure wall and CPU seconds from its making on."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    @property
    def wall_seconds(self) -> float:
        return time.perf_counter() - self._wall

    def both(self) -> dict[str, float]:
        return {"wall_seconds": self.wall_seconds, "cpu_seconds": time.process_time() - self._cpu}


def measure_engine(
    config: EngineConfig, requests: list[WorkloadRequest], *, batching: Batching = Batching.CONTINUOUS
) -> ThroughputReport:
    """Load the model, replay the workload in real time, and report; loading and warm-up are not counted."""
    engine = load_engine(config, batching)
    watch = _Stopwatch()
    num_added = 0
    errors: dict[int, str] = {}  # of failed requests, in the order they failed
    while num_added < len(requests) or engine.has_work:
        now = watch.wall_seconds
        while num_added < len(requests) and requests[num_added].arrival_seconds <= now:
            _add(engine, num_added, requests[num_added])
            num_added += 1
        if engine.has_work:
            errors |= {
                delta.request_id: delta.error or "it failed"
                for delta in engine.step()
                if delta.finish_reason is FinishReason.ERROR
            }
        else:
            time.sleep(max(0.0, requests[num_added].arrival_seconds - now))
    return _report(f"{batching}-{config.max_num_seqs}", requests, errors, times=watch.both(), stats=engine.stats())


def measure_transformers(
    model: str, requests: list[WorkloadRequest], *, batch_size: int, dtype: str
) -> ThroughputReport:
    """Run transformers' `generate` over padded batches in order; each batch waits for its longest request."""
    import torch  # noqa: PLC0415 - only the comparison needs these two
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        model, dtype=getattr(torch, dtype), trust_remote_code=False
    ).eval()
    batches = [requests[index : index + batch_size] for index in range(0, len(requests), batch_size)]
    with torch.inference_mode():
        generate_padded(loaded, [_short(request) for request in batches[0][:2]])
        watch = _Stopwatch()
        for batch in batches:
            generate_padded(loaded, batch)
    return _report(f"transformers-{batch_size}", requests, {}, times=watch.both(), stats=None)


def generate_padded(model: Any, batch: list[WorkloadRequest]) -> list[list[int]]:
    """Return the new tokens of each request, all as many as the longest asks for."""
    import torch  # noqa: PLC0415

    width = max(len(request.prompt_token_ids) for request in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, request in enumerate(batch):  # generation continues at the right end, so the padding is on the left
        ids[row, width - len(request.prompt_token_ids) :] = torch.tensor(request.prompt_token_ids)
        mask[row, width - len(request.prompt_token_ids) :] = 1
    longest = max(request.max_tokens for request in batch)
    rows = model.generate(
        ids, attention_mask=mask, max_new_tokens=longest, min_new_tokens=longest, do_sample=False, pad_token_id=0
    )
    new: list[list[int]] = rows[:, width:].tolist()
    return new


def compare(
    config: EngineConfig,
    requests: list[WorkloadRequest],
    *,
    static_batch_sizes: list[int],
    transformers_batch_sizes: list[int],
) -> Iterator[ThroughputReport]:
    """Measure continuous batching, the static mode at the same limit and other sizes, and transformers, in one run."""
    yield measure_engine(config, requests)
    for size in dict.fromkeys([config.max_num_seqs, *static_batch_sizes]):
        yield measure_engine(replace(config, max_num_seqs=size), requests, batching=Batching.STATIC)
    dtype = "bfloat16" if config.dtype == "auto" else config.dtype
    for size in transformers_batch_sizes:
        yield measure_transformers(config.model, requests, batch_size=size, dtype=dtype)


def speedups(reports: list[ThroughputReport]) -> dict[str, float]:
    """Return how many times faster the first report is than the second, and than the best of each other kind."""
    first, *others = reports
    rates = {report.name: report.output_tokens_per_second for report in others[:1]}
    for report in others:
        kind = f"{report.name.rsplit('-', 1)[0]} at its best"
        rates[kind] = max(rates.get(kind, 0.0), report.output_tokens_per_second)
    return {name: first.output_tokens_per_second / rate for name, rate in rates.items()}


def main(argv: list[str] | None = None) -> int:
    """Read the command line, measure, print; return the exit code."""
    return run(parse(argv))


def run(arguments: argparse.Namespace) -> int:
    """Measure and print what `parse` read; return the exit code."""
    try:
        requests = read_workload(arguments.workload)
        if arguments.compare:
            _check_comparable(arguments.model, requests)
        config = engine_config(
            arguments,
            dtype=arguments.dtype,
            block_size=arguments.block_size,
            enable_prefix_caching=not arguments.no_prefix_caching,
            speculation=Speculation(arguments.speculation),
            policy=PolicyName(arguments.policy),
        )
        reports = _measured(config, requests, arguments)
    except (EngineError, WorkloadError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(_as_json(reports) if arguments.json else render(reports))
    last = reports[-1]
    if last.num_failed:
        count = f"{last.num_failed} of {last.num_requests} requests failed"
        print(f"error: {count}, the first: {last.first_error}", file=sys.stderr)
        return 1
    return 0


def _check_comparable(model: str, requests: list[WorkloadRequest]) -> None:
    """Raise WorkloadError for what transformers' `generate` cannot be given."""
    if is_gguf(Path(model)):
        raise WorkloadError(
            f"--compare: transformers needs a model folder, {model} is a GGUF file; "
            f"`python -m benchmarks.make_model OUT --weights {model}` writes one."
        )
    if any(request.json_schema is not None for request in requests):
        raise WorkloadError("--compare: transformers keeps no output to a JSON schema, and the workload has some.")


def _measured(
    config: EngineConfig, requests: list[WorkloadRequest], arguments: argparse.Namespace
) -> list[ThroughputReport]:
    """Return the runs that the command line asks for; where requests fail, that run alone: no ratio to it holds."""
    if not arguments.compare:
        return [measure_engine(config, requests, batching=Batching(arguments.batching))]
    reports = []
    for report in compare(
        config,
        requests,
        static_batch_sizes=arguments.static_batch_sizes,
        transformers_batch_sizes=arguments.batch_sizes,
    ):
        if report.num_failed:
            return [report]
        reports.append(report)
        print(f"{report.name}: {report.output_tokens_per_second:.1f} output tok/s", file=sys.stderr)
    return reports


def render(reports: list[ThroughputReport]) -> str:
    """Return the reports as a table, one row each, and the ratios; without what no report knows."""
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


def _add(engine: Engine, request_id: int, request: WorkloadRequest) -> None:
    schema = request.json_schema
    params = SamplingParams(
        temperature=0.0,
        max_tokens=request.max_tokens,
        ignore_eos=request.ignore_eos,
        structured=None if schema is None else StructuredOutput(json=schema),
    )
    engine.add(NewRequest(request_id=request_id, prompt_token_ids=request.prompt_token_ids, params=params))


def _short(request: WorkloadRequest) -> WorkloadRequest:
    return WorkloadRequest(
        prompt_token_ids=request.prompt_token_ids[:8], max_tokens=2, ignore_eos=True, arrival_seconds=0.0
    )


def _report(
    name: str,
    requests: list[WorkloadRequest],
    errors: dict[int, str],
    *,
    times: dict[str, float],
    stats: EngineStats | None,
) -> ThroughputReport:
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


def _as_json(reports: list[ThroughputReport]) -> str:
    body: dict[str, Any] = {"runs": [asdict(report) for report in reports]}
    if len(reports) > 1:
        body["speedups"] = speedups(reports)
    return json.dumps(body, indent=2)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line; exit with a sentence where it is wrong."""
    parser = argparse.ArgumentParser(prog="tokenmill bench throughput", description=(__doc__ or "").partition("\n")[0])
    add_engine_options(parser)
    parser.add_argument("--workload", type=Path, required=True, help="JSONL of prompt_token_ids, max_tokens, …")
    parser.add_argument("--batching", choices=["continuous", "static"], default="continuous")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--block-size", type=natural, default=16)
    parser.add_argument("--no-prefix-caching", action="store_true")
    parser.add_argument("--speculation", choices=list(Speculation), default=Speculation.OFF)
    parser.add_argument("--policy", choices=list(PolicyName), default=PolicyName.PRIORITY)
    parser.add_argument("--compare", action="store_true", help="also measure the static mode and transformers")
    parser.add_argument(
        "--batch-sizes", type=naturals, default=[8, 16, 32], help="transformers' batches, with --compare"
    )
    parser.add_argument(
        "--static-batch-sizes", type=naturals, default=[8], help="besides --max-num-seqs, with --compare"
    )
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
