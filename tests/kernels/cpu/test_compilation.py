"""A kernel may be compiled by a process of its own: this one then finds it, or compiles it where that one failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels.cpu import row_ops
from kernels.cpu.runtime import compilation

ROOT = Path(__file__).resolve().parents[3]

SCRIPT = """
import json, sys
import torch
from numba.core import event
compiled = []
class Listener(event.Listener):
    def on_start(self, e): compiled.append(e)
    def on_end(self, e): pass
event.register("numba:compile", Listener())
from kernels.cpu import row_ops
from kernels.cpu.runtime import compilation
from kernels.rms_norm import rms_norm

compilation._num_cores = lambda: 2
kernel = row_ops._RMS_NORM[torch.float32]
kernel.begin_to_compile()
has_begun = kernel._compiler is not None
if "kill" in sys.argv:
    kernel._compiler.kill()
ones = rms_norm(torch.ones(2, 8), torch.ones(8), eps=0.0)
assert bool(ones.eq(1.0).all())
print(json.dumps({"has_begun": has_begun, "compiled_here": bool(compiled)}))
"""


def started(cache: Path, *arguments: str) -> Any:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", SCRIPT, *arguments]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)


def test_a_kernel_is_compiled_by_another_process_once(tmp_path: Path) -> None:
    assert started(tmp_path) == {"has_begun": True, "compiled_here": False}
    assert started(tmp_path) == {"has_begun": False, "compiled_here": False}


def test_a_kernel_whose_compiler_dies_is_compiled_here(tmp_path: Path) -> None:
    assert started(tmp_path, "kill") == {"has_begun": True, "compiled_here": True}


def test_no_process_is_started_on_a_single_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "cache_directory", lambda: tmp_path)
    monkeypatch.setattr(compilation, "_num_cores", lambda: 1)
    assert compilation.compile_apart(row_ops._rms_norm_float32) is None


def test_no_process_is_started_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "cache_directory", lambda: None)
    assert compilation.compile_apart(row_ops._rms_norm_float32) is None
