"""Run the real roles under faults and say whether anything was lost or repeated.

The engine is one that costs nothing, or that of the demo model. API, control worker, dispatcher and workers are
processes, over an embedded Postgres and Valkey and an S3. Batches come all the time; some are cancelled, run out of
time or are deleted. Every fault comes at a time drawn from the seed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from benchmarks.arguments import natural, positive
from lab import no_compute
from lab.chaos import report
from lab.chaos.expected import Answer
from lab.chaos.faults import Chaos
from lab.chaos.plan import TROUBLE_SECONDS, Kind, plan_faults
from lab.chaos.receiver import Received, receiver
from lab.chaos.recoveries import measure
from lab.chaos.stack import MODEL_FOLDER, Launcher, Stack, running_stack
from lab.chaos.traffic import Outcome, Traffic
from lab.s3_server import s3_server

_COUNTS = {
    Kind.WORKER_KILL: ("--worker-kills", 8),
    Kind.WORKER_STOP: ("--stopped-workers", 2),
    Kind.ENGINE_KILL: ("--engine-crashes", 2),
    Kind.ENGINE_FREEZE: ("--frozen-engines", 0),
    Kind.VALKEY_LOSS: ("--valkey-losses", 3),
    Kind.VALKEY_OUTAGE: ("--valkey-outages", 0),
    Kind.POSTGRES_CRASH: ("--postgres-crashes", 2),
    Kind.CONNECTIONS: ("--broken-connections", 4),
    Kind.ROLE_KILL: ("--role-kills", 3),
}
_SAY_SECONDS = 60.0
_WEBHOOK_SECONDS = 120.0
_NUM_BATCHES = "SELECT count(*) FROM batch"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line's options."""
    parser = argparse.ArgumentParser(prog="tokenmill bench chaos", description=__doc__)
    parser.add_argument("--lines", type=natural, default=20_000, help="at least; more come while faults go on")
    parser.add_argument("--minutes", type=positive, default=3.0, help="over which the faults are spread")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=natural, default=3)
    parser.add_argument(
        "--seats",
        type=natural,
        default=no_compute.SEATS,
        help="lines at once in an engine; few for a run beside others",
    )
    parser.add_argument(
        "--demo-model",
        action="store_true",
        help="workers run the demo model; its answers are held to those of the bare engine",
    )
    for kind, (option, default) in _COUNTS.items():
        parser.add_argument(option, type=_count, default=default, metavar="N", help=str(kind))
    parser.add_argument(
        "--store-minutes",
        type=_minutes,
        default=1.0,
        help="of an object store that answers 503, 404 or 200 with a page, or hangs, in pieces",
    )
    parser.add_argument("--data-dir", metavar="FOLDER", help="a new one, where data and logs stay")
    parser.add_argument("--report", type=Path, metavar="FILE", help="with every fault where it ends in .json")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is given; it must be a whole number.")
    return int(text)


def _minutes(text: str) -> float:
    if not text.replace(".", "", 1).isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is given; it must be a number, 0 or above.")
    return float(text)


def run(arguments: argparse.Namespace, make_launcher: Callable[[Path], Launcher], *, lease_seconds: float) -> int:
    """Do it in a folder of its own, which is kept where something was found; return the exit status."""
    _require_checkout()
    folder = _new_folder(arguments.data_dir)
    logs = folder / "logs"
    logs.mkdir()
    with (logs / "faults.log").open("w", encoding="utf-8") as log:
        found = _carry_out(arguments, make_launcher(folder), lease_seconds=lease_seconds, log=log)
    if found.findings:
        print(f"data and logs are kept in {folder}", file=sys.stderr)
    elif arguments.data_dir is None:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.report is not None:
        report.write(found, arguments.report)
    print(report.as_markdown(found), end="", flush=True)
    return 1 if found.findings else 0


def _require_checkout() -> None:
    if find_spec("moto") is None or not MODEL_FOLDER.is_dir():
        raise SystemExit("this needs moto and the demo model: run it in a checkout, after `bash scripts/setup`")


def _new_folder(given: str | None) -> Path:
    folder = Path(given or tempfile.mkdtemp(prefix="tm-chaos-"))
    folder.mkdir(exist_ok=True)
    if any(folder.iterdir()):
        raise SystemExit(f"--data-dir {folder} holds something. Give a folder that is new or empty.")
    folder.chmod(0o755)  # as root, Postgres runs as another user
    return folder


def _carry_out(arguments: argparse.Namespace, launcher: Launcher, *, lease_seconds: float, log: TextIO) -> report.Run:
    counts = {kind: getattr(arguments, option[2:].replace("-", "_")) for kind, (option, _) in _COUNTS.items()}
    counts[Kind.STORE_TROUBLE] = round(arguments.store_minutes * 60 / TROUBLE_SECONDS)
    plan = plan_faults(counts, seconds=arguments.minutes * 60, seed=arguments.seed)
    with ExitStack() as closing:
        s3, received = closing.enter_context(s3_server()), closing.enter_context(receiver())
        stack = closing.enter_context(
            running_stack(
                launcher, s3, num_workers=arguments.workers, num_seats=arguments.seats, computes=arguments.demo_model
            )
        )
        answers_to = _answers_of_demo_model() if arguments.demo_model else None
        started_at = time.time()
        traffic = Traffic(stack, received, num_lines=arguments.lines, seed=arguments.seed, answers_to=answers_to)
        chaos = Chaos(stack, plan, lease_seconds=lease_seconds, seed=arguments.seed, log=log)
        traffic.start()
        with _stopped_by_signals(chaos, traffic):
            chaos.run(_Watch(chaos, traffic))
        seconds = time.time() - started_at
        findings = list(_findings(stack, traffic, received))
        return report.Run(
            seed=arguments.seed,
            started_at=started_at,
            seconds=seconds,
            num_workers=arguments.workers,
            outcomes=traffic.outcomes,
            faults=chaos.done,
            recoveries=measure(stack, chaos.done),
            num_repeated_webhooks=received.num_repeats,
            findings=findings,
        )


def _answers_of_demo_model() -> Callable[[Sequence[str]], Mapping[str, Answer]]:
    from lab.chaos.demo import DemoAnswers  # noqa: PLC0415 - it loads torch, which no other run needs

    return DemoAnswers(str(MODEL_FOLDER)).of


@contextmanager
def _stopped_by_signals(chaos: Chaos, traffic: Traffic) -> Iterator[None]:
    """At the first SIGINT or SIGTERM let what was begun come to its end: the report tells of that much."""

    def stop(number: int, _: object) -> None:
        print("no more faults and batches; waiting for those that were begun", file=sys.stderr, flush=True)
        chaos.stop()
        traffic.stop()
        signal.signal(number, before[signal.Signals(number)])

    before = {name: signal.signal(name, stop) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


class _Watch:
    """Tells whether all is over, has no more batches submitted once no fault is left, and says now and then how far."""

    def __init__(self, chaos: Chaos, traffic: Traffic) -> None:
        self._chaos = chaos
        self._traffic = traffic
        self._say_at = time.monotonic() + _SAY_SECONDS

    def __call__(self) -> bool:
        if not self._chaos.num_due:
            self._traffic.end()
        if time.monotonic() >= self._say_at:
            self._say_at += _SAY_SECONDS
            print(
                f"{len(self._chaos.done)} faults, {self._chaos.num_due} to come; batches of "
                f"{self._traffic.num_finished:,} lines have ended",
                file=sys.stderr,
                flush=True,
            )
        return not self._chaos.num_due and self._traffic.is_over


def _findings(stack: Stack, traffic: Traffic, received: Received) -> Iterator[str]:
    yield from traffic.faults
    for outcome in traffic.outcomes:
        yield from outcome.problems
    yield from _untold(traffic.outcomes, received)
    [(num_batches,)] = stack.query(_NUM_BATCHES)
    if num_batches != len(traffic.outcomes):
        yield f"{len(traffic.outcomes)} batches were asked for, and there are {num_batches}"
    audit = subprocess.run(
        [sys.executable, "-m", "cli.main", "audit"],
        env={**os.environ, **stack.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if audit.returncode:
        yield from (f"audit: {line}" for line in (audit.stdout + audit.stderr).splitlines())


def _untold(outcomes: Sequence[Outcome], received: Received) -> Iterator[str]:
    """Yield the batches whose end was not told, or as two events."""
    deadline = time.monotonic() + _WEBHOOK_SECONDS
    for outcome in outcomes:
        wanted = [f"batch.{outcome.status}"]
        while not (came := received.of(outcome.batch_id)) and time.monotonic() < deadline:
            time.sleep(0.2)
        if came != wanted:
            yield f"webhooks of batch {outcome.batch_id}, {outcome.status}: {came}"
