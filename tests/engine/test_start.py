"""What a start on the CPU loads: the rest would only make it longer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STARTED = """
import json, sys
from engine.build import build_engine
from engine.config import EngineConfig
config = {"device": "cpu", "dtype": "float32", "num_kv_blocks": 40, "warm_up": False}  # compiles nothing
engine = build_engine(EngineConfig(model="examples/demo_model", **config))
print(json.dumps(sorted({"transformers", "sympy", "torch._dynamo"} & set(sys.modules))))
"""


def test_an_engine_of_a_plain_model_loads_no_transformers() -> None:
    command = [sys.executable, "-c", STARTED]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == []
