"""Measure output tokens per second of the engine on a workload, alone or against its static mode and transformers.

python -m benchmarks.throughput --model DIR --workload FILE.jsonl[.gz] [--batching static] [--compare] [--json]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.arguments import add_engine_options, engine_config, natural, naturals
from benchmarks.static_batching import Batching
from benchmarks.throughput.measuring import compare, measure_engine
from benchmarks.throughput.report import ThroughputReport, as_json, render
from benchmarks.workload import WorkloadError, WorkloadRequest, read_workload
from engine.config import EngineConfig, PolicyName, Speculation
from engine.errors import EngineError
from engine.gguf.container import is_gguf


def main(argv: list[str] | None = None) -> int:
    """Read the command line, measure and print; return the exit code."""
    return run(parse(argv))


def run(arguments: argparse.Namespace) -> int:
    """Measure and print with the arguments of `parse`; return the exit code."""
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
    print(as_json(reports) if arguments.json else render(reports))
    last = reports[-1]
    if last.num_failed:
        count = f"{last.num_failed} of {last.num_requests} requests failed"
        print(f"error: {count}, the first: {last.first_error}", file=sys.stderr)
        return 1
    return 0


def _check_comparable(model: str, requests: list[WorkloadRequest]) -> None:
    """Raise WorkloadError if transformers' `generate` cannot run the workload."""
    if is_gguf(Path(model)):
        raise WorkloadError(
            f"--compare: transformers needs a model folder, {model} is a GGUF file; "
            f"`python -m lab.make_model OUT --weights {model}` writes one."
        )
    if any(request.json_schema is not None for request in requests):
        raise WorkloadError("--compare: transformers does not support JSON schemas, and the workload has some.")


def _measured(
    config: EngineConfig, requests: list[WorkloadRequest], arguments: argparse.Namespace
) -> list[ThroughputReport]:
    """Return the requested runs; if requests fail, only that run, because its ratios would be invalid."""
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


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line; exit with a message if it is wrong."""
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
