"""Tests of the real roles under every kind of fault, for half a minute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
COUNTS = {
    "--worker-kills": 3,
    "--stopped-workers": 1,
    "--engine-crashes": 1,
    "--valkey-losses": 2,
    "--postgres-crashes": 2,
    "--broken-connections": 4,
    "--role-kills": 3,
}
NUM_OF_SERVERS = 5
"""Kinds of faults that need no worker: Postgres, Valkey, connections, roles, the store."""
QUICK = {"LEASE_SECONDS": "5", "HEARTBEAT_SECONDS": "1", "HINT_AGAIN_SECONDS": "3", "CLAIM_ALONE_SECONDS": "1"}
"""Short, so that a killed worker's chunks come back within the test."""


@pytest.mark.timeout(600)
def test_nothing_is_lost_repeated_or_billed_twice_whatever_fails(memory_folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    counts = [word for option, num in COUNTS.items() for word in (option, str(num))]
    more = ["--lines", "2000", "--minutes", "0.3", "--workers", "2", "--store-minutes", "0.34", "--seed", "7"]
    places = ["--report", str(report), "--data-dir", str(memory_folder)]
    run = subprocess.run(
        [sys.executable, "-m", "cli.main", "bench", "chaos", *counts, *more, *places],
        cwd=ROOT,
        env=os.environ | {f"TOKENMILL_{name}": value for name, value in QUICK.items()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Nothing lost, repeated or billed twice." in run.stdout
    told = json.loads(report.read_text())
    assert sum(told["fault_counts"].values()) == len(told["faults"])
    assert len(told["fault_counts"]) >= NUM_OF_SERVERS  # on a starved machine no worker may get as far as having work
    assert told["findings"] == []
    assert told["answers"] + told["not_run"] == told["lines"] >= 2000
