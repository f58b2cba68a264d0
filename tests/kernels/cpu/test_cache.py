"""Tests that compiled code and cached code give the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.comparison, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[3]

SCRIPT = """
import hashlib, sys
import torch
from numba.core import event
compiled = []
class Listener(event.Listener):
    def on_start(self, e): compiled.append(e)
    def on_end(self, e): pass
event.register("numba:compile", Listener())
from kernels.paged import AttentionRule, LayerCache, PagedStep
from kernels.paged_attention import paged_attention
from kernels.rms_norm import rms_norm
from kernels.rope import rope
from kernels.silu_mul import silu_mul

torch.manual_seed(0)
found = []
for dtype in (torch.float32, torch.bfloat16):
    x = torch.randn(37, 192).to(dtype)
    found += [rms_norm(x, torch.randn(192).to(dtype), eps=1e-5), silu_mul(x)]
    query, keys, values = torch.randn(37, 6, 32), torch.randn(9, 2, 16, 32), torch.randn(9, 2, 16, 32)
    tables = torch.arange(9, dtype=torch.int32).view(3, 3)
    starts, contexts = (torch.tensor(numbers, dtype=torch.int32) for numbers in ([0, 1, 2, 37], [40, 7, 35]))
    numbers = {"max_query_len": 35, "max_context_len": 40, "slots": starts.long(), "positions": starts.long()}
    step = PagedStep(block_tables=tables, query_start=starts, context_lens=contexts, **numbers)
    query, keys, values = query.to(dtype), keys.to(dtype), values.to(dtype)
    found.append(paged_attention(query, LayerCache(keys, values), step, AttentionRule(scale=0.2)))
    turned = query.clone()
    rope(turned, turned[:, :2].clone(), torch.arange(37), torch.randn(37, 32))
    found.append(turned)
print(len(compiled), *(hashlib.sha256(tensor.float().numpy().tobytes()).hexdigest() for tensor in found))
"""


def compilations_and_digests(cache: Path) -> tuple[int, list[str]]:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", SCRIPT]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    num_compiled, *digests = run.stdout.split()
    return int(num_compiled), digests


def test_the_first_process_rounds_as_all_later_ones_which_compile_nothing(tmp_path: Path) -> None:
    num_compiled, first = compilations_and_digests(tmp_path)
    assert num_compiled > 0
    assert len(first) == 8
    assert any(tmp_path.rglob("*.nbc")), "nothing was kept for the second process"
    assert compilations_and_digests(tmp_path) == (0, first)
