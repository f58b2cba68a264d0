"""Run the real roles under faults and check that nothing was lost or repeated.

The engine computes nothing, or is that of the demo model. API, control worker, dispatcher and workers are processes,
over an embedded Postgres and Valkey and an S3. Batches arrive all the time; some are cancelled, expire or are deleted.
The time of every fault is drawn from the seed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from benchmarks.arguments import natural, positive
from lab import no_compute
from lab.chaos import report
from lab.chaos.expected import MAX_TOKENS, Answer
from lab.chaos.faults import Chaos
from lab.chaos.flows import translations
from lab.chaos.flows.embedder import write_embedder
from lab.chaos.flows.flow_load import FlowLoad
from lab.chaos.flows.place import FlowOutcome
from lab.chaos.load import Load
from lab.chaos.plan import TROUBLE_SECONDS, Kind, plan_faults
from lab.chaos.receiver import Received, receiver
from lab.chaos.recoveries import measure
from lab.chaos.stack import MODEL_FOLDER, Launcher, Stack, StackPlan, running_stack
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
    Kind.SERVER_KILL: ("--server-kills", 0),
    Kind.SERVER_HANG: ("--server-hangs", 0),
    Kind.SERVER_CUT: ("--server-cuts", 0),
}
"""The option of each kind of fault, and its default."""
_WITH_SERVER = {
    Kind.WORKER_KILL: 12,
    Kind.WORKER_STOP: 4,
    Kind.SERVER_KILL: 18,
    Kind.SERVER_HANG: 10,
    Kind.SERVER_CUT: 16,
}
"""Defaults with `--engine openai`; of other kinds there are none."""
_OF_OWN_ENGINE = (Kind.ENGINE_KILL, Kind.ENGINE_FREEZE)
_OF_SERVER = (Kind.SERVER_KILL, Kind.SERVER_HANG, Kind.SERVER_CUT)
_SAY_SECONDS = 60.0
_WEBHOOK_SECONDS = 120.0
_TEND_SECONDS = 0.2
_NUM_BATCHES = "SELECT count(*) FROM batch"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line's options."""
    parser = argparse.ArgumentParser(prog="tokenmill bench chaos", description=__doc__)
    parser.add_argument(
        "--lines", type=natural, default=20_000, help="minimum number of lines; more are submitted while faults go on"
    )
    parser.add_argument(
        "--flows",
        type=natural,
        metavar="N",
        help="instead of batches, minimum number of flows of all recipes, by prepare workers and an embedder, too",
    )
    parser.add_argument("--minutes", type=positive, default=3.0, help="time over which the faults are spread")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=natural, default=3)
    parser.add_argument(
        "--seats",
        type=natural,
        default=no_compute.SEATS,
        help="concurrent lines per engine; use few beside other work",
    )
    parser.add_argument(
        "--demo-model",
        action="store_true",
        help="workers run the demo model; its answers are compared with the bare engine's",
    )
    parser.add_argument(
        "--engine",
        choices=("own", "openai"),
        default="own",
        help="openai: workers ask one server, which computes nothing and is killed, hung and cut off (60 faults)",
    )
    parser.add_argument(
        "--server-command",
        metavar="COMMAND",
        help="with --engine openai: a real server of --model-folder in fp32, which serves it as `echo` on the unix "
        "socket {socket}; its answers are compared with the bare engine's",
    )
    parser.add_argument("--model-folder", type=Path, metavar="FOLDER", help="of the model of --server-command")
    parser.add_argument("--max-tokens", type=natural, default=MAX_TOKENS, help="of an answer")
    for kind, (option, default) in _COUNTS.items():
        shown = f"{kind} [default: {default}; with --engine openai {_WITH_SERVER.get(kind, 0)}]"
        parser.add_argument(option, type=_count, metavar="N", help=shown)
    parser.add_argument(
        "--store-minutes",
        type=_minutes,
        help="total time, in parts, in which the object store answers 503, 404 or 200 with a page, or hangs",
    )
    parser.add_argument("--data-dir", metavar="FOLDER", help="new folder in which data and logs are kept")
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write the report here; a .json file lists every fault"
    )
    parsed = parser.parse_args(arguments)
    if parsed.flows is not None and parsed.demo_model:
        parser.error("--flows and --demo-model are given; the demo model cannot state answers. Leave one out.")
    _complete(parser, parsed)
    return parsed


def _complete(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> None:
    """Set the options that were left out, and refuse those that do not go with the engine."""
    has_server = parsed.engine == "openai"
    if has_server and (parsed.flows is not None or parsed.demo_model):
        parser.error("--engine openai goes with neither --flows nor --demo-model. Leave one out.")
    if (parsed.server_command is None) != (parsed.model_folder is None) or (parsed.server_command and not has_server):
        parser.error("--server-command and --model-folder go together, and with --engine openai. Give all or none.")
    if parsed.store_minutes is None:
        parsed.store_minutes = 0.0 if has_server else 1.0
    for kind, (option, default) in _COUNTS.items():
        if getattr(parsed, _name(option)) is None:
            setattr(parsed, _name(option), _WITH_SERVER.get(kind, 0) if has_server else default)
        if getattr(parsed, _name(option)) and kind in (_OF_OWN_ENGINE if has_server else _OF_SERVER):
            parser.error(f"{option} is given with --engine {parsed.engine}, where nothing can fail so. Leave it out.")


def _name(option: str) -> str:
    return option[2:].replace("-", "_")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is given; it must be a whole number.")
    return int(text)


def _minutes(text: str) -> float:
    if not text.replace(".", "", 1).isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is given; it must be a number, 0 or above.")
    return float(text)


def run(arguments: argparse.Namespace, make_launcher: Callable[[Path], Launcher], *, lease_seconds: float) -> int:
    """Run in a new folder, which is kept if there are findings; return the exit status."""
    _require_checkout()
    folder = _new_folder(arguments.data_dir)
    logs = folder / "logs"
    logs.mkdir()
    with (logs / "faults.log").open("w", encoding="utf-8") as log:
        result = _carry_out(arguments, make_launcher(folder), folder, lease_seconds=lease_seconds, log=log)
    if result.findings:
        print(f"data and logs are in {folder}", file=sys.stderr)
    elif arguments.data_dir is None:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.report is not None:
        report.write(result, arguments.report)
    print(report.as_markdown(result), end="", flush=True)
    return 1 if result.findings else 0


def _require_checkout() -> None:
    if find_spec("moto") is None or not MODEL_FOLDER.is_dir():
        raise SystemExit("this needs moto and the demo model: run it in a checkout, after `bash scripts/setup`")


def _new_folder(data_dir: str | None) -> Path:
    folder = Path(data_dir or tempfile.mkdtemp(prefix="tm-chaos-"))
    folder.mkdir(exist_ok=True)
    if any(folder.iterdir()):
        raise SystemExit(f"--data-dir {folder} is not empty. Give a new or empty folder.")
    folder.chmod(0o755)  # as root, Postgres runs as another user
    return folder


def _carry_out(
    arguments: argparse.Namespace, launcher: Launcher, folder: Path, *, lease_seconds: float, log: TextIO
) -> report.Run:
    counts = {kind: getattr(arguments, _name(option)) for kind, (option, _) in _COUNTS.items()}
    counts[Kind.STORE_TROUBLE] = round(arguments.store_minutes * 60 / TROUBLE_SECONDS)
    plan = plan_faults(counts, seconds=arguments.minutes * 60, seed=arguments.seed)
    with ExitStack() as closing:
        s3, received = closing.enter_context(s3_server()), closing.enter_context(receiver())
        stack = closing.enter_context(running_stack(launcher, s3, _stack_plan(arguments, folder)))
        started_at = time.time()
        traffic = None if arguments.flows else _traffic(arguments, stack, received)
        flows = FlowLoad(stack, num_flows=arguments.flows, seed=arguments.seed) if arguments.flows else None
        load: Load[Outcome] | Load[FlowOutcome] | None = traffic or flows
        assert load is not None, "one of the two"
        chaos = Chaos(stack, plan, lease_seconds=lease_seconds, seed=arguments.seed, log=log)
        load.start()
        with _stopped_by_signals(chaos, load):
            chaos.run(_Watch(chaos, load))
        seconds = time.time() - started_at
        findings = [*load.faults]
        if traffic is not None:
            findings += _tended(stack, _wrong_batches(stack, traffic, received))
        if flows is not None:
            findings += _tended(stack, flows.findings())
        audit = _audit(stack)
        findings += audit.findings
        return report.Run(
            seed=arguments.seed,
            started_at=started_at,
            seconds=seconds,
            num_workers=arguments.workers,
            outcomes=[] if traffic is None else traffic.outcomes,
            flows=[] if flows is None else flows.outcomes,
            faults=chaos.done,
            recoveries=measure(stack, chaos.done),
            num_repeated_webhooks=received.num_repeats,
            audit=audit.output,
            findings=findings,
        )


def _stack_plan(arguments: argparse.Namespace, folder: Path) -> StackPlan:
    plan = StackPlan(
        num_workers=arguments.workers,
        num_seats=arguments.seats,
        computes=arguments.demo_model,
        has_server=arguments.engine == "openai",
        server_command=tuple(shlex.split(arguments.server_command or "")),
        model_folder=arguments.model_folder or MODEL_FOLDER,
    )
    if arguments.flows is None:
        return plan
    return replace(plan, embedder=write_embedder(folder / "embedder"), variables=translations.variables())


def _traffic(arguments: argparse.Namespace, stack: Stack, received: Received) -> Traffic:
    computes = arguments.demo_model or arguments.server_command is not None
    return Traffic(
        stack,
        received,
        num_lines=arguments.lines,
        seed=arguments.seed,
        max_tokens=arguments.max_tokens,
        answers_to=_bare_answers(stack.model_folder, max_tokens=arguments.max_tokens) if computes else None,
    )


def _bare_answers(folder: Path, *, max_tokens: int) -> Callable[[Sequence[str]], Mapping[str, Answer]]:
    from lab.chaos.demo import BareAnswers  # noqa: PLC0415 - it loads torch, which no other run needs

    return BareAnswers(str(folder), max_tokens=max_tokens).of


@contextmanager
def _stopped_by_signals(chaos: Chaos, load: Load[Any]) -> Iterator[None]:
    """On the first SIGINT or SIGTERM let the started work finish: the report covers that much."""

    def stop(number: int, _: object) -> None:
        print("starting no more faults and work; waiting for the running ones", file=sys.stderr, flush=True)
        chaos.stop()
        load.stop()
        signal.signal(number, before[signal.Signals(number)])

    before = {name: signal.signal(name, stop) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


class _Watch:
    """Reports whether the run is over, stops submission once no fault is pending, and prints progress now and then."""

    def __init__(self, chaos: Chaos, load: Load[Any]) -> None:
        self._chaos = chaos
        self._load = load
        self._say_at = time.monotonic() + _SAY_SECONDS

    def __call__(self) -> bool:
        if not self._chaos.num_due:
            self._load.end()
        if time.monotonic() >= self._say_at:
            self._say_at += _SAY_SECONDS
            print(
                f"{len(self._chaos.done)} faults, {self._chaos.num_due} to come; "
                f"{self._load.num_finished:,} {self._load.unit} have ended",
                file=sys.stderr,
                flush=True,
            )
        return not self._chaos.num_due and self._load.is_over


def _wrong_batches(stack: Stack, traffic: Traffic, received: Received) -> Iterator[str]:
    for outcome in traffic.outcomes:
        yield from outcome.problems
    yield from _untold(traffic.outcomes, received)
    [(num_batches,)] = stack.query(_NUM_BATCHES)
    if num_batches != len(traffic.outcomes):
        yield f"{len(traffic.outcomes)} batches were submitted, but there are {num_batches}"


def _tended(stack: Stack, findings: Iterable[str]) -> list[str]:
    """Collect findings in a thread, while this one restarts what has died; an error that ends them is the last one."""
    collected: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        collecting = pool.submit(collected.extend, findings)
        while not collecting.done():
            stack.tend()
            time.sleep(_TEND_SECONDS)
    error = collecting.exception()
    return collected if error is None else [*collected, f"the final checks ended early: {error!r}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Audit:
    output: str
    findings: Sequence[str]


def _audit(stack: Stack) -> _Audit:
    ended = subprocess.run(
        [sys.executable, "-m", "cli.main", "audit"],
        env={**os.environ, **stack.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    findings = (ended.stdout + ended.stderr).splitlines() if ended.returncode else ()
    return _Audit(output=ended.stdout, findings=[f"audit: {line}" for line in findings])


def _untold(outcomes: Sequence[Outcome], received: Received) -> Iterator[str]:
    """Yield the batches whose end was not reported, or was reported by two events."""
    deadline = time.monotonic() + _WEBHOOK_SECONDS
    for outcome in outcomes:
        expected = [f"batch.{outcome.status}"]
        while not (came := received.of(outcome.batch_id)) and time.monotonic() < deadline:
            time.sleep(0.2)
        if came != expected:
            yield f"webhooks of batch {outcome.batch_id}, {outcome.status}: {came}"
