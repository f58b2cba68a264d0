"""Real workers of a stack, from 0 to 2 and back, as a batch with a deadline comes and ends; asked as KEDA asks.

All processes are the real ones; the engines compute nothing and take a fixed time for a step.
"""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import make_url

from jobs import served_models
from jobs.access import SCALER
from jobs.database import connect, sessions, transaction
from jobs.errors import TokenmillError
from jobs.scaling.asking import ask_anew
from jobs.scaling.limits import Limits, set_limits
from lab import no_compute
from lab.autoscaling.keda import Trigger
from lab.own_stack import OwnStack, own_stack, tokenmill_here

MODEL = "demo"
_POLL_SECONDS = 5.0
_COOLDOWN_SECONDS = 30.0
_LIMITS = Limits(max_workers=2, startup_seconds=15.0, expected_rate=300.0)
_STEP_SECONDS, _SEATS = 0.05, 8
_MAX_TOKENS, _NUM_LINES, _NUM_WORDS = 64, 600, 60
_WINDOW = "4m"
_LONGEST_SECONDS = 900.0


@dataclass(slots=True, kw_only=True)
class Fleet:
    """Worker processes of a stack."""

    stack: OwnStack
    environment: Mapping[str, str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def set(self, number: int) -> None:
        """Start workers, or let the last ones end their work and stop."""
        while len(self.processes) < number:
            command = [tokenmill_here(), "worker", "--model", MODEL, "--data-dir", str(self.stack.data_dir)]
            environment = {**os.environ, **self.environment}
            quiet = subprocess.DEVNULL
            self.processes.append(subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet))
        while len(self.processes) > number:
            process = self.processes.pop()
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def run(seed: int) -> None:
    """Run the loop, and print a line for each change."""
    environment = {
        **no_compute.environment(step_seconds=_STEP_SECONDS, tokens_a_step=1, num_seats=_SEATS),
        "TOKENMILL_CHUNK_LINES": "16",
    }
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before; seed {seed}", flush=True)
    with own_stack(tokenmill_here(), "--workers", "0", environment=environment) as stack:
        _set_up(stack)
        fleet = Fleet(stack=stack, environment=environment)
        try:
            _loop(stack, fleet, seed)
        finally:
            fleet.set(0)


def _loop(stack: OwnStack, fleet: Fleet, seed: int) -> None:
    trigger = Trigger(max_replicas=_LIMITS.max_workers, cooldown_seconds=_COOLDOWN_SECONDS)
    url = make_url(stack.database_url).set(username=SCALER).render_as_string(hide_password=False)
    began, batch_id, shown = time.monotonic(), "", (-1.0, -1, "")
    while True:
        now = time.monotonic() - began
        if now > 2 * _POLL_SECONDS and not batch_id:
            batch_id = _submit(stack, seed)
            print(f"{now:6.1f} s  a batch of {_NUM_LINES} lines is submitted, its deadline is in {_WINDOW}", flush=True)
        value = _ask(url)
        fleet.set(trigger.answered(value, now=now))
        status = _status(stack, batch_id)
        seen = (math.nan if value is None else value, trigger.replicas, status)
        if seen != shown:
            print(f"{now:6.1f} s  answer {value}, workers {trigger.replicas}, batch {status}", flush=True)
            shown = seen
        if (status == "completed" and not trigger.replicas) or now > _LONGEST_SECONDS:
            return
        time.sleep(_POLL_SECONDS)


def _status(stack: OwnStack, batch_id: str) -> str:
    """Return the state of the batch; exit where it fails."""
    if not batch_id:
        return "none"
    batch = stack.client().batches.retrieve(batch_id)
    if batch.status in ("failed", "expired"):
        raise SystemExit(f"the batch ended as {batch.status}")
    return batch.status


def _ask(url: str) -> float | None:
    """Ask by a fresh connection; None where the query fails."""
    try:
        return float(ask_anew(url, MODEL, seconds=_POLL_SECONDS))
    except TokenmillError as error:
        print(f"          {error}", flush=True)
        return None


def _submit(stack: OwnStack, seed: int) -> str:
    generator = random.Random(seed)
    text = " ".join(generator.choice(("one", "two", "three", "four")) for _ in range(_NUM_WORDS))
    requests = [
        {"messages": [{"role": "user", "content": f"{text} {number}"}], "max_tokens": _MAX_TOKENS, "model": MODEL}
        for number in range(_NUM_LINES)
    ]
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}
        for number, body in enumerate(requests)
    ]
    made = stack.client().post(
        "/batches",
        body={"requests": lines, "endpoint": "/v1/chat/completions", "completion_window": _WINDOW},
        cast_to=dict[str, object],
    )
    return str(made["id"])


def _set_up(stack: OwnStack) -> None:
    engine = connect(stack.database_url)
    with transaction(sessions(engine)) as session:
        path = served_models.find_model(session, MODEL).path
        served_models.put_model(session, MODEL, path, is_checked=True)  # batches may name it before a worker runs
        set_limits(session, MODEL, _LIMITS)
    engine.dispose()
