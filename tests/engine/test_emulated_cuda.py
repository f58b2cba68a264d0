"""Tests of the engine's CUDA path without a GPU, on an emulated device: see emulated_cuda.py and emulated_runs.py."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.comparison, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed (it needs Linux)")
def test_the_engine_runs_on_an_emulated_device() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/engine/emulated_runs.py"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=290, check=False)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
