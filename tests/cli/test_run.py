"""Tests of `tokenmill run` with the demo model: interrupted in both ways, finished by the same command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.killed import finished_lines, kill, wait_for

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_processes")]

ROOT = Path(__file__).resolve().parents[2]
NUM_LINES = 60  # more than are finished between two polls


def _start(folder: Path) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOKENMILL_")}
    command = [
        sys.executable, "-m", "cli.main", "run", str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl"),
        "--model", str(ROOT / "examples" / "demo_model"), "--data-dir", str(folder / "data"),
    ]  # fmt: skip
    return subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        # Chunks of two lines, so that some are finished long before all are.
        env={**environment, "PYTHONPATH": str(ROOT), "TOKENMILL_CHUNK_LINES": "2", "TOKENMILL_WORKER_CHUNKS": "2",
             "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.mark.timeout(900)  # three starts of everything; 45 s of CPU in all
def test_an_interrupted_run_goes_on_and_computes_no_line_twice(tmp_path: Path) -> None:
    lines = (ROOT / "examples" / "documents.jsonl").read_text().splitlines()[:NUM_LINES]
    too_long = json.loads(lines[0]) | {"custom_id": "bad"}
    too_long["body"]["messages"][-1]["content"] = "x y " * 1000  # by its exact tokens, which only the worker counts
    text = "\n".join([*lines, json.dumps(too_long)]).replace('"model": "demo"', '"model": "my-model"')
    (tmp_path / "in.jsonl").write_text(text)

    with _start(tmp_path) as process:
        wait_for(lambda: len(finished_lines(tmp_path)) >= 1, process)
        kill(process)
    with _start(tmp_path) as process:
        wait_for(lambda: len(finished_lines(tmp_path)) >= 4, process)
        before = finished_lines(tmp_path)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
        assert process.returncode == 130
        assert "Run the same command again to resume." in said
    assert not (tmp_path / "out.jsonl").exists()
    assert len(before) < NUM_LINES
    after: dict[int, str] = {}
    with _start(tmp_path) as process:
        while process.poll() is None:
            after = finished_lines(tmp_path) or after
            time.sleep(0.05)
        said = process.communicate()[1]
        assert process.returncode == 0, said
    assert {line_no: after[line_no] for line_no in before} == before  # the same rows, not written again

    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [answer["custom_id"] for answer in answers] == [json.loads(line)["custom_id"] for line in lines]
    errors = [json.loads(line) for line in (tmp_path / "out.errors.jsonl").read_text().splitlines()]
    assert [error["custom_id"] for error in errors] == ["bad"]
    assert f"{NUM_LINES} of {NUM_LINES + 1} lines completed" in said
    assert "\x1b" not in said
    assert not list(tmp_path.glob("data/objects/tenant_*/*"))

    with _start(tmp_path) as process:
        said = process.communicate(timeout=120)[1]
    assert (process.returncode, "is already complete" in said) == (0, True)


def test_a_broken_file_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("{")
    with _start(tmp_path) as process:
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert said.startswith(
        f"tokenmill: {tmp_path}/in.jsonl fails validation, bad lines: 1 of 1:\n  line 1: this line is not valid JSON"
    )
    assert said.endswith("(invalid_json_line)\n")
    assert said.count("\n") == 2
    assert not (tmp_path / "data").exists()
