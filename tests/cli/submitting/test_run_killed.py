"""Tests of `tokenmill run` killed at each point: the same command finds its work, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.cli.service import Service, clean_environment, completed, failed, write_lines

pytestmark = pytest.mark.long

EVENTS = (
    "replace state.json",  # begun
    "POST /v1/files",  # before it learned the id
    "POST /v1/batches",  # the same; the lines run then
    "GET /v1/files/ID/content",
    "replace out.errors.jsonl",
    "replace out.jsonl",
    "DELETE /v1/batches/ID",
    "DELETE /v1/files/ID",
)


def start(service: Service, folder: Path, event: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable, "-m", "tests.cli.submitting.killing", event, "run", str(folder / "in.jsonl"),
        "-o", str(folder / "out.jsonl"), "--data-dir", str(folder / "data"),
    ]  # fmt: skip
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env=clean_environment(**service.variables)
    )


def all_batches(service: Service) -> list[tuple[str, bool]]:
    """Return the batches, deleted ones too, each with whether it is deleted."""
    with psycopg.connect(service.database) as connection:
        return connection.execute("SELECT id, deleted_at IS NOT NULL FROM batch ORDER BY created_at").fetchall()


@pytest.mark.timeout(600)
def test_a_run_that_is_killed_after_each_of_its_steps_runs_once_and_leaves_nothing(
    service: Service, tmp_path: Path
) -> None:
    write_lines(tmp_path / "in.jsonl", 2)
    folder = tmp_path
    for event in EVENTS:
        killed = start(service, folder, event)
        assert killed.returncode == -signal.SIGKILL, (event, killed.stderr)
        outputs = {path.name: path.read_bytes().count(b"\n") for path in folder.glob("out*")}
        assert outputs in ({}, {"out.errors.jsonl": 1}, {"out.errors.jsonl": 1, "out.jsonl": 1}), event
        for batch_id, _ in all_batches(service):
            if event == "POST /v1/batches":
                service.work_off(batch_id, [completed(0, "0"), failed(1, "1", code="engine_failure")])
    again = start(service, folder, "never")
    assert again.returncode == 0, again.stderr
    assert "is already complete" in again.stderr
    assert [is_deleted for _, is_deleted in all_batches(service)] == [True]
    assert service.run("files", "list").stdout.count("\n") == 1, "the header alone"
    assert json.loads((folder / "out.jsonl").read_text())["custom_id"] == "0"
    assert not list(folder.glob(".out*"))
    assert [path.name for path in folder.glob("data/runs/*/*")] == ["state.json"]
