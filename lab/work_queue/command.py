"""Reads the options of `tokenmill bench queue` and runs its sections, each on a stack of its own."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.arguments import natural
from lab import no_compute, validation
from lab.own_stack import OwnStack, own_stack
from lab.work_queue import claims, fairness, results, small_batches

SECTIONS = ("validation", "claims", "results", "small", "fairness")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line's options."""
    parser = argparse.ArgumentParser(
        prog="tokenmill bench queue",
        description="Measure the queue on stacks of its own, whose engine computes nothing: lines validated, results "
        "committed, status calls meanwhile, claims before long queues, batches of one line, and the shares of two "
        "tenants.",
    )
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS, help="default: all")
    parser.add_argument("--validated", type=natural, default=1_000_000, help="lines of the batch that is validated")
    parser.add_argument("--lines", type=natural, default=100_000, help="lines that are answered; a million for memory")
    parser.add_argument("--queued", nargs="+", type=natural, default=[10_000, 10_000_000], help="lines before a claim")
    parser.add_argument("--tenants", type=natural, default=20, help="whose lines are before a claim")
    parser.add_argument("--claims", type=natural, default=500, help="of each queue")
    parser.add_argument("--small-batches", type=natural, default=2_000, help="batches of one line that are all open")
    parser.add_argument("--share-lines", type=natural, default=8_000, help="of a tenant beside one with 100 times them")
    parser.add_argument("--share-rate", type=natural, default=200, help="lines a second, about, of these two")
    parser.add_argument("--share-seconds", type=natural, default=60, help="in any of which their shares are compared")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run the sections that are asked for, and print what each has found."""
    chosen = parse(arguments)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before", flush=True)
    if "validation" in chosen.sections:
        with _stack_without_workers() as stack:
            validation.measure(stack.database_url, chosen.validated)
    if "claims" in chosen.sections:
        with _stack_without_workers() as stack:
            claims.measure(stack, queued=chosen.queued, num_tenants=chosen.tenants, num_claims=chosen.claims)
    if "results" in chosen.sections:
        with _stack() as stack:
            results.measure(stack, chosen.lines)
    if "small" in chosen.sections:
        with _stack() as stack:
            small_batches.measure(stack, chosen.small_batches)
    if "fairness" in chosen.sections:
        with _stack(lines_a_second=chosen.share_rate) as stack:
            fairness.measure(stack, num_lines=chosen.share_lines, window_seconds=chosen.share_seconds)
    print(f"load {os.getloadavg()[0]:.1f} after", flush=True)
    return 0


def _stack(*, lines_a_second: int | None = None) -> AbstractContextManager[OwnStack]:
    """Return a stack whose engine takes no time, or so much that about so many lines end in a second."""
    seconds = 0.0 if lines_a_second is None else no_compute.SEATS / lines_a_second
    return own_stack(_tokenmill(), environment=no_compute.environment(step_seconds=seconds))


def _stack_without_workers() -> AbstractContextManager[OwnStack]:
    return own_stack(_tokenmill(), "--workers", "0", environment={})


def _tokenmill() -> str:
    return str(Path(sys.executable).with_name("tokenmill"))
