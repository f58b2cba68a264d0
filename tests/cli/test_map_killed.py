"""Tests of a local `tokenmill map` that is killed: the same command finishes it, and computes no row twice."""

from __future__ import annotations

import csv
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.killed import finished_lines, kill, wait_for
from tests.cli.service import ROOT, clean_environment

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_processes")]

NUM_ROWS = 24


def start(folder: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "cli.main", "map", str(folder / "in.csv"), "-o", str(folder / "out.csv"),
        "--prompt", str(folder / "prompt.j2"), "--model", str(ROOT / "examples" / "demo_model"),
        "--max-tokens", "32", "--param", "ignore_eos=true", "--data-dir", str(folder / "data"),
    ]  # fmt: skip
    # Chunks of two lines, so that some are finished long before all are.
    few = {"TOKENMILL_CHUNK_LINES": "2", "TOKENMILL_WORKER_CHUNKS": "2", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=clean_environment(**few))


@pytest.mark.timeout(900)  # two starts of everything
def test_a_map_that_was_killed_goes_on_and_computes_no_row_twice(tmp_path: Path) -> None:
    (tmp_path / "prompt.j2").write_text("{{ [][0] if id == '7' }}Invoice {{ id }}, total?")
    (tmp_path / "in.csv").write_text("id\n" + "".join(f"{number}\n" for number in range(NUM_ROWS)))
    with start(tmp_path) as process:
        wait_for(lambda: len(finished_lines(tmp_path)) >= 2, process)
        before = finished_lines(tmp_path)
        kill(process)
    assert not (tmp_path / "out.csv").exists()
    assert len(before) < NUM_ROWS - 1
    after: dict[int, str] = {}
    with start(tmp_path) as process:
        while process.poll() is None:
            after = finished_lines(tmp_path) or after
            time.sleep(0.05)
        said = process.communicate()[1]
    assert process.returncode == 0, said
    assert {line_no: after[line_no] for line_no in before} == before  # the same rows, not written again
    assert f"{NUM_ROWS - 1} of {NUM_ROWS} rows answered" in said
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [row["id"] for row in rows] == [str(number) for number in range(NUM_ROWS)]
    assert [row["id"] for row in rows if not row["answer"]] == ["7"]
    assert [row["id"] for row in rows if row["error"]] == ["7"]
    assert [path.name for path in tmp_path.glob("data/runs/*/*")] == ["state.json"]
