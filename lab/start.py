"""Measure startup in fresh processes: `LLM(model)` with and without compiled kernels, and `tokenmill up`.

    python -m lab.start --repeats 3
    python -m lab.start --idle-seconds 60    # instead: CPU share of each role of an idle stack

Wall seconds from the start of the process, and CPU seconds of it and its children. Leaves nothing behind: compiled
kernels and the stack's data lie in a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.arguments import natural
from benchmarks.processor_time import processor_seconds
from lab.own_stack import OwnStack, free_port, own_stack

_DEMO = Path(__file__).resolve().parents[1] / "examples" / "demo_model"
_STOP_SECONDS = 90
_SETTLE_SECONDS = 10.0
_PROBE = """
import json, sys, time
times = [time.time()]
from engine.llm import LLM
times.append(time.time())
llm = LLM(sys.argv[1])
times.append(time.time())
llm.generate([[1, 2, 3]])
times.append(time.time())
print(json.dumps(times))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start: seconds until it was ready, seconds of its phases, and CPU seconds."""

    wall_seconds: float
    phases: Mapping[str, float]
    cpu_seconds: float


def start_llm(model: str, environment: Mapping[str, str]) -> Start:
    """Create an `LLM` in a fresh process and generate a little."""
    before, begun = _cpu_of_children(), time.time()
    command = [sys.executable, "-c", _PROBE, model]
    run = subprocess.run(command, env=os.environ | environment, check=True, stdout=subprocess.PIPE, text=True)
    first, imported, loaded, generated = json.loads(run.stdout)
    phases = {
        "interpreter": first - begun,
        "imports": imported - first,
        "model": loaded - imported,
        "first tokens": generated - loaded,
    }
    return Start(wall_seconds=loaded - begun, phases=phases, cpu_seconds=_cpu_of_children() - before)


def start_stack(model: str, data_dir: Path, environment: Mapping[str, str]) -> Start:
    """Run `tokenmill up` until it reports that it is ready, and stop it."""
    options = ["--data-dir", str(data_dir), "--port", str(free_port()), "--model", model]
    begun, phases, last = time.time(), {}, "interpreter"
    with subprocess.Popen(
        [sys.executable, "-m", "cli.main", "up", *options],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        since = begun
        for line in process.stderr:
            phase, now = line.strip().removeprefix("tokenmill: ").partition(" for ")[0], time.time()
            phases[last], since, last = now - since, now, phase
            if phase.startswith("ready"):
                break
        else:
            raise SystemExit("the stack did not start")
        cpu_seconds = _cpu_of(psutil.Process(process.pid))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=_STOP_SECONDS)
    return Start(wall_seconds=since - begun, phases=phases, cpu_seconds=cpu_seconds)


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _cpu_of(root: psutil.Process) -> float:
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        times = process.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _report(what: str, start: Callable[[], Start], repeats: int) -> None:
    starts = []
    for _ in range(repeats):
        starts.append(start())
        phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in starts[-1].phases.items())
        wall, cpu = starts[-1].wall_seconds, starts[-1].cpu_seconds
        print(f"{what}: {wall:.1f} s, {cpu:.1f} CPU s ({phases})", flush=True)
    if repeats > 1:
        wall, cpu = (
            statistics.median(getattr(start, name) for start in starts) for name in ("wall_seconds", "cpu_seconds")
        )
        print(f"{what}, median of {repeats}: {wall:.1f} s, {cpu:.1f} CPU s", flush=True)


def report_idle(model: str, seconds: float) -> None:
    """Print the CPU use of each role of an idle stack, in percent of one core."""
    ours = str(Path(sys.executable).with_name("tokenmill"))
    with own_stack(ours, "--model", model, environment={}) as stack:
        time.sleep(_SETTLE_SECONDS)
        before, begun = _spent(stack), time.monotonic()
        time.sleep(seconds)
        after, took = _spent(stack), time.monotonic() - begun
    shares = {role: (total - before.get(role, 0.0)) / took * 100 for role, total in sorted(after.items())}
    each = ", ".join(f"{role} {percent:.2f}" for role, percent in shares.items())
    print(f"idle for {took:.0f} s, percent of a core: {each}; together {sum(shares.values()):.2f}", flush=True)


def _spent(stack: OwnStack) -> dict[str, float]:
    own = psutil.Process(stack.pid).cpu_times()
    return {"up": own.user + own.system, **processor_seconds(stack.base_url)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.start", description=__doc__)
    parser.add_argument("--model", default=str(_DEMO), help="model folder [default: the demo model]")
    parser.add_argument("--repeats", type=natural, default=3)
    parser.add_argument("--idle-seconds", type=natural, help="measure an idle stack for this long instead of startup")
    arguments = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs", flush=True)
    if arguments.idle_seconds:
        report_idle(arguments.model, arguments.idle_seconds)
        return
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:
        environment = {"NUMBA_CACHE_DIR": f"{folder}/cache"}
        _report("LLM, nothing compiled", lambda: start_llm(arguments.model, environment), 1)
        _report("LLM", lambda: start_llm(arguments.model, environment), arguments.repeats)
        data_dir = Path(folder, "data")
        _report("up, new data", lambda: start_stack(arguments.model, data_dir, environment), 1)
        _report("up, data there", lambda: start_stack(arguments.model, data_dir, environment), arguments.repeats)
    print(f"load after: {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
