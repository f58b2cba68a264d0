"""Tests of compiling a kernel in another process: this one then finds it, or compiles it if that failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.cpu import row_ops
from kernels.cpu.attention import host as attention
from kernels.cpu.runtime import amx, compilation, launch
from kernels.cpu.runtime.launch import CpuKernel, compile_all

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
from kernels.cpu.runtime import amx, compilation, launch
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


def test_a_process_that_compiles_attention_loads_no_torch() -> None:
    program = "import sys, kernels.cpu.attention.entries; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=280, check=False).returncode == 0


def test_a_process_that_nobody_waits_for_is_no_zombie(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    ended = threading.Event()
    wait = child.wait

    def noted() -> int:
        status = wait()
        ended.set()
        return status

    monkeypatch.setattr(child, "wait", noted)
    monkeypatch.setattr(launch, "compile_apart", lambda _: child)
    CpuKernel(row_ops._rms_norm_float32, row_ops._RMS_BLOCK).begin_to_compile()
    assert ended.wait(60)


def called(monkeypatch: pytest.MonkeyPatch, method: str) -> list[CpuKernel]:
    """Return the list of kernels whose method is called from now on, without effect."""
    kernels: list[CpuKernel] = []

    def note(kernel: CpuKernel) -> None:
        kernels.append(kernel)

    monkeypatch.setattr(CpuKernel, method, note)
    return kernels


def test_what_another_process_compiles_is_waited_for_last(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = called(monkeypatch, "compile")
    apart, here = (CpuKernel(row_ops._rms_norm_float32, row_ops._RMS_BLOCK) for _ in range(2))
    with subprocess.Popen([sys.executable, "-c", ""]) as apart._compiler:
        compile_all([apart, here])
    assert compiled == [here, apart]


@pytest.mark.parametrize("has_dots", [False, True])
def test_a_likely_kernel_is_begun_before_the_unit_is_chosen(monkeypatch: pytest.MonkeyPatch, has_dots: bool) -> None:
    begun = called(monkeypatch, "begin_to_compile")
    monkeypatch.setattr(attention, "_has_dots", lambda: has_dots)
    monkeypatch.setattr(amx, "can_use", lambda: False)
    attention.begin_to_compile_attention(torch.bfloat16, torch.bfloat16, 64)
    assert begun == ([attention._KERNELS[torch.bfloat16, torch.bfloat16]] if has_dots else [])
    attention.begin_to_compile_attention(torch.bfloat16, torch.bfloat16, 64, in_float32=has_dots)
    other = attention._BY_MULTIPLY_ADDS if has_dots else attention._KERNELS[torch.bfloat16, torch.bfloat16]
    assert begun[-1] is other
