"""The options of `tokenmill bench autoscaling` and its parts.

tokenmill bench autoscaling week --trace FILE.csv.gz [--services m-small m-mid m-large] [--seeds 0 1 2]
tokenmill bench autoscaling plot FILE.json … -o docs/autoscaling.png
tokenmill bench autoscaling time [--batches 10000]
tokenmill bench autoscaling real [--seed 0]
tokenmill bench autoscaling switching [--gpus 1 2] [--seeds 0 1 2] [--load 0.7] [--days 2]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.arguments import natural
from lab.autoscaling import study, switching
from lab.traces import TraceError

SERVICES = ("m-small", "m-mid", "m-large")


def main(arguments: Sequence[str]) -> int:
    """Run one part, print its results, and return the exit code."""
    options = parse(arguments)
    try:
        {"week": _week, "plot": _plot, "time": _time, "real": _real, "switching": _switching}[options.part](options)
    except TraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line's options."""
    parser = argparse.ArgumentParser(
        prog="tokenmill bench autoscaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    week = parts.add_parser("week", help="simulate a week of a public trace under the rule and other policies")
    week.add_argument("--trace", type=Path, required=True, help="rates of services in windows of ten minutes")
    week.add_argument("--services", nargs="+", default=SERVICES)
    week.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    week.add_argument("--json", type=Path, help="file for all numbers, for `plot`")
    plot = parts.add_parser("plot", help="draw what `week --json` wrote")
    plot.add_argument("results", nargs="+", type=Path)
    plot.add_argument("-o", "--output", type=Path, required=True)
    time = parts.add_parser("time", help="measure the function on a Postgres of its own")
    time.add_argument("--batches", type=natural, default=10_000)
    real = parts.add_parser("real", help="scale real workers from 0 and back, asked as KEDA asks")
    real.add_argument("--seed", type=int, default=0)
    models = parts.add_parser("switching", help="simulate two models on GPUs that serve one at a time")
    models.add_argument("--gpus", nargs="+", type=natural, default=(1, 2))
    models.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    models.add_argument("--load", type=float, default=0.7, help="their work ÷ what the GPUs compute")
    models.add_argument("--days", type=natural, default=2)
    return parser.parse_args(arguments)


def _week(options: argparse.Namespace) -> None:
    print(study.HEADER)
    rows = []
    for row in study.run(options.trace, services=options.services, seeds=options.seeds):
        rows.append(row)
        print(study.line(row), flush=True)
    if options.json is not None:
        study.write(rows, options.json)


def _plot(options: argparse.Namespace) -> None:
    from lab.autoscaling import plot  # noqa: PLC0415 - only drawing needs matplotlib

    plot.draw(options.results, options.output)


def _time(options: argparse.Namespace) -> None:
    from lab.autoscaling import timing  # noqa: PLC0415 - the week needs no stack

    timing.measure(options.batches)


def _switching(options: argparse.Namespace) -> None:
    print(switching.HEADER)
    for row in switching.run(num_gpus=options.gpus, seeds=options.seeds, load=options.load, days=options.days):
        print(switching.line(row), flush=True)


def _real(options: argparse.Namespace) -> None:
    from lab.autoscaling import real  # noqa: PLC0415 - the week needs no stack

    real.run(options.seed)
