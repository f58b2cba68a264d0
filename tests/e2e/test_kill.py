"""Tests of processes killed in the middle of a batch of 2,000 lines: nothing is lost, repeated or billed twice.

The processes are those that a user's `tokenmill up` starts, no forks of loaded ones.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.builders import REAL_COMMANDS, check_ledger

pytestmark = pytest.mark.long

NUM_LINES = 2_000
NUM_LONG_LINES = 600
"""The first lines have long answers: all kills come before their end, the latest after some 400."""
LONG, SHORT = 64, 8  # tokens of an answer
NUM_WORKER_KILLS = 5
TIMEOUT_SECONDS = 540
MIN_PROGRESS = 20  # finished lines between two kills, so that each hits a working engine


@pytest.fixture(scope="module")
def stack_commands() -> Path:
    return REAL_COMMANDS


@pytest.fixture(scope="module")
def stack_settings() -> dict[str, str]:
    """Short leases, so that a killed worker's chunks come back in seconds; few concurrent lines, as they end together.

    With many, a fast machine would have finished all of them before the last kill.
    """
    return {
        "LEASE_SECONDS": "5",
        "HEARTBEAT_SECONDS": "1",
        "HINT_AGAIN_SECONDS": "3",
        "CHUNK_LINES": "32",
        "WORKER_CHUNKS": "2",
    }


def input_lines() -> list[dict[str, Any]]:
    return [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": "demo",
                "messages": [{"role": "user", "content": f"Invoice {number}\nTotal: {number}.25 USD"}],
                "max_tokens": LONG if number < NUM_LONG_LINES else SHORT,
                "ignore_eos": True,
                "temperature": 0,
            },
        }
        for number in range(NUM_LINES)
    ]


def patiently(call: Callable[[], Any]) -> Any:
    """The official client retries by itself; a user would retry after that, too."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return call()
        except (openai.APIConnectionError, openai.InternalServerError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


class Killer:
    """Kills one process each time the batch has progressed."""

    def __init__(self, stack: Any) -> None:
        self._stack = stack
        self.done: list[str] = []
        worker = ("worker", self._kill_worker)
        self._plan = [
            worker,
            ("valkey", self._kill_valkey),
            worker,
            ("postgres backends", self._kill_backends),
            worker,
            worker,
            worker,
            ("api", lambda: self._kill_role("api")),  # last: while it starts, the batch goes on unseen
        ]

    @property
    def is_finished(self) -> bool:
        return not self._plan

    def strike(self) -> None:
        name, act = self._plan.pop(0)
        act()
        self.done.append(name)

    def _kill_worker(self) -> None:
        self._kill_role("worker")

    def _kill_role(self, name: str) -> None:
        process = self._stack.role(name)
        assert process is not None, f"{name} is not running"
        process.kill()

    def _kill_valkey(self) -> None:
        self._kill_role("valkey-server")
        shutil.rmtree(self._stack.data_dir / "valkey", ignore_errors=True)

    def _kill_backends(self) -> None:
        self._stack.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")


@pytest.mark.timeout(700)
def test_every_line_comes_out_exactly_once_whatever_is_killed(stack: Any) -> None:
    client = stack.client()
    content = "\n".join(json.dumps(line) for line in input_lines()).encode()
    uploaded = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h")
    batch_id = batch.id
    killer, num_before = Killer(stack), 0
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while batch.status not in ("completed", "failed"):
        assert time.monotonic() < deadline, f"{batch.request_counts} after {killer.done}; {stack.logs()}"
        time.sleep(0.2)
        batch = patiently(lambda: client.batches.retrieve(batch_id))
        num_done = batch.request_counts.completed
        if not killer.is_finished and num_done >= num_before + MIN_PROGRESS and stack.role("worker") is not None:
            killer.strike()
            num_before = num_done

    assert killer.done.count("worker") == NUM_WORKER_KILLS, f"finished before all kills: {killer.done}"
    assert killer.is_finished
    assert batch.status == "completed"
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (NUM_LINES, NUM_LINES, 0)
    output = [
        json.loads(line)
        for line in patiently(lambda: client.files.content(str(batch.output_file_id))).text.splitlines()
    ]
    assert [line["custom_id"] for line in output] == [f"line-{number}" for number in range(NUM_LINES)]
    assert check_ledger(stack, batch.id, output) == NUM_LONG_LINES * LONG + (NUM_LINES - NUM_LONG_LINES) * SHORT
    audit = stack.audit()
    assert audit.returncode == 0, audit.stdout + audit.stderr
