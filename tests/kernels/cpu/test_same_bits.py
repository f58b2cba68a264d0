"""Tests that a row's bits do not depend on the CPU's maker or its vectors' width."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import pytest
import torch
from numba.core import codegen

from kernels.cpu import row_ops
from kernels.cpu.runtime import compilation
from kernels.rms_norm import add_rms_norm, rms_norm

pytestmark = [pytest.mark.comparison, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[3]

SCRIPT = """
import hashlib
import torch
from kernels.activations import Activation, activate
from kernels.layer_norm import layer_norm
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope import rope
from kernels.silu_mul import silu_mul

torch.manual_seed(0)
found = []
for width in (1, 7, 100, 192, 576):
    x, residual, weight = torch.randn(37, width), torch.randn(37, width), torch.randn(width)
    found += [rms_norm(x, weight, eps=1e-5), silu_mul(torch.cat((x, residual), -1))]
    found += [layer_norm(x, weight, residual[0], eps=1e-5), *(activate(x, one) for one in Activation)]
    found += add_rms_norm(x.bfloat16(), residual.bfloat16(), weight.bfloat16(), eps=1e-5)
turned = torch.randn(37, 6, 30)
rope(turned, turned[:, :2].clone(), torch.arange(37), torch.randn(37, 26))
found.append(turned)
print(*(hashlib.sha256(tensor.float().numpy().tobytes()).hexdigest() for tensor in found))
"""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_of_equal_numbers_becomes_ones(dtype: torch.dtype) -> None:
    rows = torch.tensor([0.5, 1.0, 2.0, 1024.0])[:, None].expand(4, 100).to(dtype).contiguous()
    ones = torch.ones(100).to(dtype)
    assert rms_norm(rows, ones, eps=0.0).eq(1.0).all()
    assert add_rms_norm(rows, rows, ones, eps=0.0)[0].eq(1.0).all()


@pytest.mark.parametrize(
    "function", [row_ops._rms_norm_float32, row_ops._add_rms_norm_bfloat16, row_ops._silu_mul_float32]
)
def test_no_estimate_of_the_cpus_own_is_compiled(function: Callable[[Any], None]) -> None:
    compiled = numba.cfunc(compilation.SIGNATURE, **compilation.COMPILE_OPTIONS)(function)
    assert not re.findall(r"\bv?(?:rsqrt|rcp)\w*", compiled._library.get_asm_str())


@pytest.mark.skipif("+fma" not in codegen.get_host_cpu_features().split(","), reason="this CPU runs no code for others")
def test_cpus_of_other_vector_widths_round_alike() -> None:
    widest = digests({})
    assert len(widest) == 41
    assert digests({"NUMBA_CPU_NAME": "haswell"}) == widest


def digests(environment: dict[str, str]) -> list[str]:
    command = [sys.executable, "-c", SCRIPT]
    environment = os.environ | environment | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout.split()
