"""Tests that this package imports without CUDA, and without Triton."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import torch
from kernels import paged_attention, rms_norm, rope, rope_and_write_kv, silu_mul, write_kv
from kernels.gpu import backend
assert not backend.HAS_TRITON
x = torch.tensor([[3.0, 4.0]])
print(rms_norm.rms_norm(x, torch.ones(2), eps=0.0).tolist())
"""


def test_the_cpu_path_works_where_triton_is_not_installed() -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_TRITON], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("[[0.848528")


def test_importing_every_module_starts_no_cuda_and_compiles_nothing() -> None:
    paths = (path.relative_to(ROOT).with_suffix("") for path in (ROOT / "kernels").rglob("*.py"))
    modules = sorted(".".join(path.parts) for path in paths if path.name != "__init__")
    code = (
        "import importlib, torch\n"
        "from numba.core import event\n"
        "class Listener(event.Listener):\n"
        "    def on_start(self, e): raise SystemExit('compiled at import')\n"
        "    def on_end(self, e): pass\n"
        "event.register('numba:compile', Listener())\n"
        f"[importlib.import_module(name) for name in {modules!r}]\n"
        "assert not torch.cuda.is_initialized()\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
