"""The options of `tokenmill bench dashboard`, and the run of its parts."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.arguments import natural, positive
from lab.chaos.stack import Launcher
from lab.dashboard import open_pages, pages
from lab.dashboard.rows import Sizes, fill
from lab.dashboard.stack import running_stack

SECTIONS = ("pages", "open")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line's options."""
    parser = argparse.ArgumentParser(
        prog="tokenmill bench dashboard",
        description="Measure the cost of the dashboard's pages for a Postgres of its own with a month of work, and "
        "the cost of many open ones for all processes.",
    )
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS, help="default: all")
    parser.add_argument("--batches", type=natural, default=10_000, help="batches in all states")
    parser.add_argument("--workers", type=natural, default=200)
    parser.add_argument("--tenants", type=natural, default=20)
    parser.add_argument(
        "--lines", type=natural, default=20, help="lines of most batches; every thousandth has 50 times as many"
    )
    parser.add_argument("--largest", type=natural, default=40_000, help="lines of one batch, half of them done")
    parser.add_argument("--loads", type=natural, default=20, help="loads of every page")
    parser.add_argument("--looks", type=natural, default=10, help="refreshes of every stream, about one a second")
    parser.add_argument("--open", type=natural, default=50, help="pages open at once")
    parser.add_argument("--seconds", type=positive, default=30.0, help="how long they are open")
    return parser.parse_args(arguments)


def run(arguments: argparse.Namespace, make_launcher: Callable[[Path], Launcher]) -> int:
    """Fill a database, and print the measurements."""
    sizes = Sizes(
        batches=arguments.batches,
        workers=arguments.workers,
        tenants=arguments.tenants,
        lines=arguments.lines,
        largest=arguments.largest,
    )
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before", flush=True)
    with running_stack(make_launcher) as stack:
        filled = fill(stack.engine, sizes)
        if "pages" in arguments.sections:
            pages.measure(stack, filled, num_loads=arguments.loads, num_looks=arguments.looks)
        if "open" in arguments.sections:
            open_pages.measure(stack, filled, num_open=arguments.open, seconds=arguments.seconds)
    print(f"load {os.getloadavg()[0]:.1f} after", flush=True)
    return 0
