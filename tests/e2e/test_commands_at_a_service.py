"""Tests of `tokenmill run` and `map` on the data directory of a running service: they use it, and start none."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.service import typed

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_processes")]

NUM_LINES = 3


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({**line, "custom_id": str(number)}) + "\n" for number in range(NUM_LINES)))
    return path


def run(stack: Any, lines: Path, *more: str) -> subprocess.CompletedProcess[str]:
    output = lines.with_name("out.jsonl")
    return typed("run", lines, "-o", output, "--data-dir", stack.data_dir, *more, variables={})


def stored(stack: Any) -> tuple[int, int]:
    client = stack.client()
    return len(list(client.batches.list())), len(list(client.files.list()))


def test_a_run_uses_the_service_of_its_folder_and_leaves_nothing_there(shared_stack: Any, lines: Path) -> None:
    before = stored(shared_stack)
    done = run(shared_stack, lines)
    assert done.returncode == 0, done.stderr
    assert f"using the service at {shared_stack.base_url}" in done.stderr
    assert len(lines.with_name("out.jsonl").read_text().splitlines()) == NUM_LINES
    assert stored(shared_stack) == before


def test_what_a_run_stored_stays_with_keep_and_is_found_again(shared_stack: Any, lines: Path) -> None:
    batches, files = stored(shared_stack)
    assert run(shared_stack, lines, "--keep").returncode == 0
    assert stored(shared_stack) == (batches + 1, files + 2), "a batch, its input and its output"
    lines.with_name("out.jsonl").unlink()
    again = run(shared_stack, lines)
    assert (again.returncode, "resuming batch_" in again.stderr) == (0, True)
    assert lines.with_name("out.jsonl").exists()
    assert stored(shared_stack) == (batches, files)


def test_a_service_that_lacks_the_model_is_told_and_no_second_one_is_started(
    shared_stack: Any, lines: Path, tmp_path: Path
) -> None:
    lines.write_text(lines.read_text().replace('"demo"', '"mine"'))
    refused = run(shared_stack, lines, "--model", str(shared_stack.model[1]))
    assert refused.returncode == 2
    assert "does not serve 'mine'" in refused.stderr
    assert f"It serves: demo ({shared_stack.model[1]})" in refused.stderr
    assert "starting a database" not in refused.stderr
    assert not list(tmp_path.glob("out*"))


def test_a_dry_run_is_counted_by_the_service_of_its_folder(shared_stack: Any, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\nhello\nworld\n")
    (tmp_path / "prompt.j2").write_text("{{ text }}")
    before = stored(shared_stack)
    given = ("map", tmp_path / "in.csv", "--prompt", tmp_path / "prompt.j2", "--dry-run")
    shown = typed(*given, "--data-dir", shared_stack.data_dir, variables={})
    assert shown.returncode == 0, shown.stderr
    assert "a worker of the model has counted every prompt" in shown.stdout
    assert stored(shared_stack) == before
