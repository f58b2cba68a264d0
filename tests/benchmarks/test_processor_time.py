"""Tests of the CPU time of a stack's processes, found by the port of its API."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.processor_time import processor_seconds, role_of, spent

API = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
sum(range(3_000_000))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("command", "role"),
    [
        (["/venv/bin/python", "-m", "cli.main", "worker", "--model", "demo"], "worker"),
        (["/venv/bin/python", "-m", "engine.process.child", "8", "17"], "engine"),
        (["/pg/bin/postgres", "-D", "/data"], "postgres"),
        (["postgres: tokenmill tokenmill [local] idle"], "postgres"),
        (["/venv/bin/valkey-server", "*:0"], "valkey"),
        (["/bin/bash", "-c", "sleep 1"], None),
        ([], None),
    ],
)
def test_a_process_is_known_by_its_command(command: list[str], role: str | None) -> None:
    assert role_of(command) == role


def test_the_processes_beside_a_listening_api_are_counted() -> None:
    command = [sys.executable, "-c", API, "cli.main", "api"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert processor_seconds(f"http://127.0.0.1:{port}/v1")["api"] > 0
        process.communicate("")
    assert processor_seconds(f"http://127.0.0.1:{port}/v1") == {}


def test_what_a_line_cost_is_told_by_role() -> None:
    told = spent({"api": 1.0, "worker": 2.0}, {"api": 1.5, "worker": 5.0, "engine": 1.0}, num_lines=1000)
    assert told == "api 0.50, engine 1.00, worker 3.00; together 4.50"
