"""The options of `tokenmill bench schedules`, and its run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.arguments import natural, positive
from lab.chaos.stack import Launcher
from lab.schedules.progress import begin, wait
from lab.schedules.report import report
from lab.schedules.rows import Sizes, fill
from lab.schedules.spending import Spent
from lab.schedules.stack import running_stack


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line's options."""
    parser = argparse.ArgumentParser(
        prog="tokenmill bench schedules",
        description="Measure how long schedules that are due in the same minute take until the first batch of each run "
        "is handed in, and validated, on a Postgres, Valkey, dispatcher and control workers of its own.",
    )
    parser.add_argument("--schedules", type=natural, default=10_000, help="schedules, each of a pipeline of its own")
    parser.add_argument("--tenants", type=natural, default=100, help="tenants that they are of, equally many each")
    parser.add_argument("--rows", type=natural, default=5, help="rows in the source of each run")
    parser.add_argument("--control", type=natural, default=1, help="control workers; `tokenmill up` starts one")
    parser.add_argument("--most-seconds", type=positive, default=1800.0, help="report what there is after this long")
    parser.add_argument("--top", type=natural, default=15, help="statements to list, by their time in Postgres")
    return parser.parse_args(arguments)


def run(arguments: argparse.Namespace, make_launcher: Callable[[Path], Launcher]) -> int:
    """Let the schedules become due, and print the measurements."""
    sizes = Sizes(schedules=arguments.schedules, tenants=arguments.tenants, rows=arguments.rows)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before", flush=True)
    with running_stack(make_launcher, num_control=arguments.control) as stack:
        fill(stack.engine, sizes, folder=stack.folder)
        before = Spent.of(stack)
        due_at = begin(stack.engine)
        wait(stack.engine, sizes.schedules, most_seconds=arguments.most_seconds)
        spent = Spent.of(stack).since(before)
        report(stack.engine, sizes, spent, due_at=due_at, num_statements=arguments.top)
    print(f"load {os.getloadavg()[0]:.1f} after", flush=True)
    return 0
