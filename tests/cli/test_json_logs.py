"""Tests of TOKENMILL_LOG_FORMAT=json: each line that a role writes is a JSON object, from its start to its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from cli.embedded.sockets import free_port

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "a prompt that no log may hold"
ROLES = {"api": "api", "control": "control", "dispatch": "dispatch", "worker": "worker[demo]"}


def environment(**more: str) -> Mapping[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TOKENMILL_")}
    return {**clean, "TOKENMILL_LOG_FORMAT": "json", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default", **more}


def entries(text: str) -> list[dict[str, Any]]:
    """Return the lines; one that is not a JSON object fails the test."""
    return [dict(json.loads(line)) for line in text.splitlines()]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The logs of each role of a stack that ran one batch and stopped; `up` is its supervisor."""
    folder = tmp_path_factory.mktemp("up")
    port = free_port()
    command = [sys.executable, "-m", "cli.main", "up", "--data-dir", str(folder / "data"), "--port", str(port)]
    with (
        (folder / "up.err").open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT, env=environment()
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (folder / "up.err").read_text()
            exports = dict(pair.split("=", 1) for pair in line.split()[1:])
            _run_a_batch(exports)
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0
        finally:
            process.kill()
    written = {path.stem: path.read_text() for path in (folder / "data" / "logs").glob("*.log") if path.stem in ROLES}
    return {**written, "up": (folder / "up.err").read_text(), "key": exports["TOKENMILL_API_KEY"]}


def _run_a_batch(exports: Mapping[str, str]) -> None:
    body = {"model": "demo", "prompt": PROMPT, "max_tokens": 2}
    line = {"custom_id": "0", "method": "POST", "url": "/v1/completions", "body": body}
    with OpenAI(base_url=exports["TOKENMILL_BASE_URL"], api_key=exports["TOKENMILL_API_KEY"]) as client:
        file = client.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    headers = {"Authorization": f"Bearer {exports['TOKENMILL_API_KEY']}"}
    url = f"{exports['TOKENMILL_BASE_URL']}/batches/{batch.id}/events"
    with httpx.stream("GET", url, headers=headers, timeout=120) as events:  # until it ends
        assert '"completed"' in events.read().decode()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("role", "name"), ROLES.items())
def test_each_line_of_a_role_is_json_with_its_event(role: str, name: str, logs: dict[str, str]) -> None:
    found = entries(logs[role])
    assert found
    assert {entry["role"] for entry in found} == {name}
    assert all(entry["time"] and entry["level"] and entry["event"] for entry in found)


@pytest.mark.timeout(600)
def test_what_happened_is_told_by_events_with_fields(logs: dict[str, str]) -> None:
    (validated,) = [entry for entry in entries(logs["control"]) if entry["event"] == "batch validated"]
    assert validated["outcome"] == "in_progress"
    (closed,) = [entry for entry in entries(logs["worker"]) if entry["event"] == "chunk closed"]
    assert closed["batch_id"] == validated["batch_id"]
    assert isinstance(closed["chunk_id"], int)
    assert any(entry["event"] == "output" and "Warm shutdown" in entry["text"] for entry in entries(logs["worker"]))


@pytest.mark.timeout(600)
def test_the_supervisor_writes_json_too(logs: dict[str, str]) -> None:
    found = entries(logs["up"])
    assert [entry["text"] for entry in found if entry["event"] == "stack"][-1] == "stopped"


@pytest.mark.timeout(600)
def test_no_log_has_a_prompt_or_a_key(logs: dict[str, str]) -> None:
    assert [name for name, text in logs.items() if PROMPT in text] == []
    assert [name for name, text in logs.items() if logs["key"] in text] == ["key"]


def test_a_role_that_does_not_start_says_why_as_json() -> None:
    command = [sys.executable, "-m", "cli.main", "dispatch"]
    wrong = environment(TOKENMILL_LEASE_SECONDS="soon")
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=wrong, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    (entry,) = entries(ran.stderr)
    assert (entry["event"], entry["role"]) == ("command failed", "dispatch")
    assert entry["reason"].startswith("TOKENMILL_LEASE_SECONDS is 'soon'")
