"""The options of `tokenmill bench queue` and its sections, each with its own stack."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager

from benchmarks.arguments import natural
from lab import no_compute, validation
from lab.own_stack import OwnStack, own_stack, tokenmill_here
from lab.work_queue import claims, fairness, results, small_batches

SECTIONS = ("validation", "claims", "results", "small", "fairness")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line's options."""
    parser = argparse.ArgumentParser(
        prog="tokenmill bench queue",
        description="Measure the queue on stacks of its own, whose engine computes nothing: lines validated, results "
        "committed, status calls meanwhile, claims before long queues, batches of one line, and the shares of two "
        "tenants.",
    )
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS, help="default: all")
    parser.add_argument("--validated", type=natural, default=1_000_000, help="lines of the validated batch")
    parser.add_argument(
        "--lines", type=natural, default=100_000, help="lines to answer; use a million to measure memory"
    )
    parser.add_argument(
        "--queued", nargs="+", type=natural, default=[10_000, 10_000_000], help="lines in the queue of a claim"
    )
    parser.add_argument("--tenants", type=natural, default=20, help="tenants with lines in the queue")
    parser.add_argument("--claims", type=natural, default=500, help="claims on each queue")
    parser.add_argument("--small-batches", type=natural, default=2_000, help="open batches of one line")
    parser.add_argument(
        "--share-lines", type=natural, default=8_000, help="lines of a tenant beside one with 100 times as many"
    )
    parser.add_argument("--share-rate", type=natural, default=200, help="approximate lines per second of both together")
    parser.add_argument("--share-seconds", type=natural, default=60, help="window in which their shares are compared")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run the selected sections, and print their results."""
    options = parse(arguments)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before", flush=True)
    if "validation" in options.sections:
        with _stack_without_workers() as stack:
            validation.measure(stack.database_url, options.validated)
    if "claims" in options.sections:
        with _stack_without_workers() as stack:
            claims.measure(stack, queued=options.queued, num_tenants=options.tenants, num_claims=options.claims)
    if "results" in options.sections:
        with _stack() as stack:
            results.measure(stack, options.lines)
    if "small" in options.sections:
        with _stack() as stack:
            small_batches.measure(stack, options.small_batches)
    if "fairness" in options.sections:
        with _stack(lines_a_second=options.share_rate) as stack:
            fairness.measure(stack, num_lines=options.share_lines, window_seconds=options.share_seconds)
    print(f"load {os.getloadavg()[0]:.1f} after", flush=True)
    return 0


def _stack(*, lines_a_second: int | None = None) -> AbstractContextManager[OwnStack]:
    """Return a stack whose engine takes no time, or enough that about `lines_a_second` end per second."""
    seconds = 0.0 if lines_a_second is None else no_compute.SEATS / lines_a_second
    return own_stack(tokenmill_here(), environment=no_compute.environment(step_seconds=seconds))


def _stack_without_workers() -> AbstractContextManager[OwnStack]:
    return own_stack(tokenmill_here(), "--workers", "0", environment={})
