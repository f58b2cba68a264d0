"""Replay traces under scheduling policies in the simulator, and check the simulator against the engine.

python -m lab.replay trace --trace FILE.csv.gz [--policy fair] [--speed-up 4] [--requests 1000000]
python -m lab.replay study --trace FILE.csv.gz --tenants FILE.csv.gz [--plots docs]
python -m lab.replay day DAY.jsonl [--workers 2] [--policy fair] [--weight acme=2] [--class acme=urgent]
python -m lab.replay eta --trace FILE.csv.gz [--batches 100] [--seconds 100000] [--speed-up 0.5]
python -m lab.replay order [--trace FILE.csv.gz]
python -m lab.replay fleet [--workers 1000] [--tenants 10000] [--seed 0]
python -m lab.replay calibrate --model DIR [--workload FILE.jsonl]
python -m lab.replay validate --model DIR --workload FILE.jsonl [--calibration FILE.jsonl]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.arguments import add_engine_options, add_limits, engine_config, natural, positive
from benchmarks.day import DayError
from benchmarks.workload import WorkloadError, WorkloadRequest, read_workload
from engine.config import PolicyName, Speculation
from engine.errors import EngineError
from lab import eta, study
from lab.days import command
from lab.simulation import fleet, line_order
from lab.simulation.cost import LinearCost, MeasuredCost
from lab.traces import TraceError, read_trace, requests_of


def main(argv: list[str] | None = None) -> int:
    """Read the command line, replay or measure, and print; return the exit code."""
    arguments = _parser().parse_args(argv)
    commands = {
        "trace": _trace,
        "study": _study,
        "day": lambda options: command.run(options, cost=None if options.cost is None else _read_cost(options.cost)),
        "eta": _eta,
        "order": _order,
        "fleet": _fleet,
        "calibrate": _calibrate,
        "validate": _validate,
    }
    try:
        commands[arguments.command](arguments)
    except (EngineError, WorkloadError, TraceError, DayError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _trace(arguments: argparse.Namespace) -> None:
    rows = read_trace(arguments.trace)
    cost = study.H200_LLAMA_8B if arguments.cost is None else _read_cost(arguments.cost)
    requests = list(requests_of(rows, speed_up=arguments.speed_up, count=arguments.requests))
    began, cpu = time.perf_counter(), time.process_time()
    run = study.replay(
        requests,
        PolicyName(arguments.policy),
        cost=cost,
        num_kv_blocks=arguments.num_kv_blocks,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        enable_prefix_caching=not arguments.no_prefix_caching,
    )
    print(study.latency_table([run]))
    print(study.use_table([run]))
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    print(f"replayed in {wall:.1f} s; virtual time {run.result.seconds:.1f} s")
    num_steps = run.result.counters.num_steps
    print(f"{num_steps} steps, each {cpu / num_steps * 1e3:.2f} ms of CPU time for scheduler and simulator")


def _read_cost(path: Path) -> MeasuredCost:
    try:
        body = json.loads(path.read_text())
        return MeasuredCost(decode=LinearCost(**body["decode"]), mixed=LinearCost(**body["mixed"]))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise TraceError(f"{path} is not a cost model printed by calibrate: {error!r}.") from error


def _study(arguments: argparse.Namespace) -> None:
    count = arguments.requests
    azure = study.replay_all(read_trace(arguments.trace), speed_up=arguments.speed_up, count=count)
    tenants = study.replay_all(read_trace(arguments.tenants), speed_up=arguments.tenants_speed_up, count=count)
    print(study.render(azure, tenants))
    if arguments.plots is not None:
        from lab import plots  # noqa: PLC0415 - only drawing needs matplotlib

        for path in plots.draw(azure, tenants, arguments.plots):
            print(path)


def _eta(arguments: argparse.Namespace) -> None:
    rows = read_trace(arguments.trace)
    load = eta.make_load(
        rows,
        num_batches=arguments.batches,
        lines=(arguments.lines[0], max(arguments.lines)),
        seconds=arguments.seconds,
        speed_up=arguments.speed_up,
        seed=arguments.seed,
    )
    num_lines, num_beside = (sum(len(batch.lines) for batch in own) for own in (load.measured, load.beside))
    print(
        f"{len(load.measured)} batches of {num_lines:,} lines come over {arguments.seconds:.0f} s, beside "
        f"{len(load.beside):,} others of {num_beside:,} lines; seed {arguments.seed}"
    )
    run = eta.forecast_all(load)
    print(f"workers were busy {run.busy:.0%} of the time\n")
    print(eta.table(run))


def _order(arguments: argparse.Namespace) -> None:
    print(line_order.by_prompt_table())
    if arguments.trace is not None:
        print(line_order.longest_first_table(read_trace(arguments.trace)))


def _fleet(arguments: argparse.Namespace) -> None:
    workers = fleet.Fleet(num_workers=arguments.workers, num_tenants=arguments.tenants, seed=arguments.seed)
    result = workers.run(seconds=arguments.seconds, window_seconds=fleet.WINDOW_SECONDS)
    print(fleet.report(result, window_seconds=fleet.WINDOW_SECONDS))


def _calibrate(arguments: argparse.Namespace) -> None:
    from lab import calibration  # noqa: PLC0415 - loads torch

    config = engine_config(arguments, speculation=Speculation.OFF)
    cost, _ = calibration.calibrate(config, _phases(arguments.workload, arguments.model))
    print(json.dumps(asdict(cost), indent=2))


def _validate(arguments: argparse.Namespace) -> None:
    from lab import calibration  # noqa: PLC0415 - loads torch

    requests = read_workload(arguments.workload)
    learned_from = _phases(arguments.calibration, arguments.model)
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    config = engine_config(arguments, speculation=Speculation.OFF)
    cost, prediction = calibration.validate(config, requests, learned_from, clock=clock)
    print(json.dumps(calibration.report(cost, prediction), indent=2))
    print(
        f"measured {prediction.measured_tokens_per_second:.1f} output tok/s, "
        f"predicted {prediction.predicted_tokens_per_second:.1f} ({prediction.error:+.1%})"
    )


def _phases(path: Path | None, model: str) -> list[list[WorkloadRequest]]:
    from engine.models.config import load_model_config  # noqa: PLC0415
    from lab.calibration import calibration_workload  # noqa: PLC0415 - loads torch

    if path is not None:
        return [read_workload(path)]
    return calibration_workload(load_model_config(model).vocab_size)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tokenmill bench replay", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    trace = commands.add_parser("trace", help="replay one trace under one policy in the simulator")
    trace.add_argument("--policy", choices=list(PolicyName), default=PolicyName.PRIORITY)
    trace.add_argument("--cost", type=Path, help="JSON printed by calibrate; default: an H200 with an 8B model")
    trace.add_argument("--no-prefix-caching", action="store_true")
    add_limits(
        trace,
        max_num_seqs=study.MAX_NUM_SEQS,
        max_num_batched_tokens=study.MAX_NUM_BATCHED_TOKENS,
        num_kv_blocks=study.NUM_KV_BLOCKS,
    )
    both = commands.add_parser("study", help="replay the traces under every policy; print tables, draw plots")
    both.add_argument("--tenants", type=Path, required=True)
    both.add_argument("--tenants-speed-up", type=positive, default=study.TENANTS_SPEED_UP)
    both.add_argument("--plots", type=Path, help="folder for the plots")
    command.add_options(commands.add_parser("day", help="replay a recorded day of a service with other settings"))
    ends = commands.add_parser("eta", help="measure the error of forecasts of batches' ends in the simulator")
    ends.add_argument("--trace", type=Path, required=True)
    ends.add_argument("--batches", type=natural, default=100)
    ends.add_argument(
        "--lines", type=natural, nargs=2, default=(1000, 8000), metavar=("LEAST", "MOST"), help="lines of a batch"
    )
    ends.add_argument("--seconds", type=positive, default=100_000.0, help="time over which the batches arrive")
    ends.add_argument("--speed-up", type=positive, default=0.5, help="time compression of the trace as background load")
    ends.add_argument("--seed", type=int, default=0)
    lines = commands.add_parser("order", help="compare orders of a batch's waiting lines in the simulator")
    lines.add_argument("--trace", type=Path, help="trace from which lengths are drawn, for longest first")
    many = commands.add_parser("fleet", help="hand out chunks of thousands of tenants to a thousand workers")
    many.add_argument("--workers", type=natural, default=1000)
    many.add_argument("--tenants", type=natural, default=10_000)
    many.add_argument("--seconds", type=positive, default=600.0, help="duration in virtual time")
    many.add_argument("--seed", type=int, default=0)
    for replayed, speed_up in ((trace, 1.0), (both, study.SPEED_UP)):
        replayed.add_argument("--trace", type=Path, required=True)
        replayed.add_argument("--speed-up", type=positive, default=speed_up, help="time compression of arrivals")
        replayed.add_argument(
            "--requests", type=natural, help="requests of each trace, which is repeated if shorter; default: all"
        )
    calibrate = commands.add_parser("calibrate", help="measure an engine's steps and print the fitted cost model")
    validate = commands.add_parser("validate", help="predict a workload's throughput and measure it")
    validate.add_argument("--calibration", type=Path, help="workload to fit to; default: a generated one")
    validate.add_argument(
        "--cpu-time", action="store_true", help="count CPU seconds instead of wall seconds, with --num-threads 1"
    )
    for measured, is_needed in ((calibrate, False), (validate, True)):
        add_engine_options(measured)
        measured.add_argument("--workload", type=Path, required=is_needed)
    return parser


if __name__ == "__main__":
    sys.exit(main())
