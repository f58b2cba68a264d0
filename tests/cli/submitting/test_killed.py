"""Tests of `tokenmill run` and `map` killed at each point: the same command finds its work, and leaves nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest

from jobs.chunks.recording import LineResult
from tests.cli.service import Service, chatted, clean_environment, completed, failed, write_lines

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_processes")]

RUN = (
    "replace state.json",  # begun
    "POST /v1/files",  # before it learned the id
    "POST /v1/batches",  # the same; the lines run then
    "GET /v1/files/ID/content",
    "replace out.errors.jsonl",
    "replace out.jsonl",
    "DELETE /v1/batches/ID",
    "DELETE /v1/files/ID",
)
MAP = (
    "replace rendered.json",
    "POST /v1/files",
    "POST /v1/batches",
    "GET /v1/files/ID/content",
    "replace out.jsonl",
    "DELETE /v1/batches/ID",
    "DELETE /v1/files/ID",
)


def start(service: Service, event: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.cli.submitting.killing", event, *arguments]
    variables = clean_environment(**service.variables)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=variables)


def all_batches(service: Service) -> dict[str, bool]:
    """Return whether each batch is deleted."""
    with psycopg.connect(service.database) as connection:
        return dict(connection.execute("SELECT id, deleted_at IS NOT NULL FROM batch").fetchall())


def kill_at_each(
    service: Service, folder: Path, events: Sequence[str], arguments: Sequence[str], results: Sequence[LineResult]
) -> None:
    """Start a command until it is done, killed after each event in turn; its one batch gets the results."""
    before = all_batches(service)
    files = service.run("files", "list").stdout
    given = (*arguments, "-o", str(folder / "out.jsonl"), "--data-dir", str(folder / "data"))
    for event in events:
        killed = start(service, event, *given)
        assert killed.returncode == -signal.SIGKILL, (event, killed.stderr)
        outputs = {path.name for path in folder.glob("out*")}
        assert ("out.jsonl" in outputs) is (event == "replace out.jsonl" or event.startswith("DELETE")), event
        if event == "POST /v1/batches":
            (batch_id,) = all_batches(service).keys() - before.keys()
            service.work_off(batch_id, results)
    again = start(service, "never", *given)
    assert (again.returncode, "is already complete" in again.stderr) == (0, True), again.stderr
    new = {batch_id: is_deleted for batch_id, is_deleted in all_batches(service).items() if batch_id not in before}
    assert list(new.values()) == [True]
    assert service.run("files", "list").stdout == files
    assert [path.name for path in folder.glob("data/runs/*/*")] == ["state.json"]


@pytest.mark.timeout(600)
def test_a_run_that_is_killed_after_each_of_its_steps_runs_once_and_leaves_nothing(
    service: Service, tmp_path: Path
) -> None:
    write_lines(tmp_path / "in.jsonl", 2)
    results = [completed(0, "0"), failed(1, "1", code="engine_failure")]
    kill_at_each(service, tmp_path, RUN, ("run", str(tmp_path / "in.jsonl")), results)
    names = {path.name: json.loads(path.read_text())["custom_id"] for path in tmp_path.glob("*out*")}
    assert names == {"out.jsonl": "0", "out.errors.jsonl": "1"}


@pytest.mark.timeout(600)
def test_a_map_that_is_killed_after_each_of_its_steps_runs_once_and_leaves_nothing(
    service: Service, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text("text\na\nb\n")
    (tmp_path / "prompt.j2").write_text("{{ [][0] if text == 'b' }}{{ text }}")
    given = ("map", str(tmp_path / "in.csv"), "--prompt", str(tmp_path / "prompt.j2"))
    kill_at_each(service, tmp_path, MAP, given, [chatted(0, "row-1", "x")])
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["text"], row["answer"], row["error"] is None) for row in rows] == [
        ("a", "x", True),
        ("b", None, False),
    ]
