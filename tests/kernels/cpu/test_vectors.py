"""Tests of the vector parts of the CPU kernels: exp2, sums of lanes, partial loads, and processors without AVX-512."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba import types
from numba.extending import intrinsic

from kernels.cpu.runtime import memory
from kernels.cpu.runtime import vectors as v

pytestmark = [pytest.mark.comparison, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[3]


def compiled(emit: Callable[[Any, Any, Any], None]) -> Callable[[np.ndarray, np.ndarray], None]:
    """Compile code of (builder, pointer to floats in, pointer to floats out)."""
    pointer = types.CPointer(types.float32)

    @intrinsic
    def piece(typing_context: Any, source: Any, target: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            emit(builder, *arguments)
            return context.get_dummy_value()

        return types.void(pointer, pointer), generate

    @numba.cfunc(types.void(pointer, pointer), fastmath=memory.FASTMATH)
    def function(source: Any, target: Any) -> None:
        piece(source, target)

    entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(function.address)

    def run(source: np.ndarray, target: np.ndarray) -> None:
        entry(source.ctypes.data, target.ctypes.data)

    run.function = function  # type: ignore[attr-defined]  # the code lives as long as this
    return run


def test_exp2_is_exact_to_rounding_0_far_down_and_keeps_nan() -> None:
    def emit(builder: Any, source: Any, target: Any) -> None:
        result = v.exp2(builder, v.load_vector(builder, source, v.I64(0), v.FLOATS))
        v.store_floats(builder, result, target, v.I64(0))

    run, out = compiled(emit), np.empty(16, np.float32)
    for x in np.linspace(-125.9, 125.9, 64 * 16, dtype=np.float32).reshape(-1, 16):
        run(x, out)
        np.testing.assert_allclose(out, np.exp2(x.astype(np.float64)), rtol=3e-7)
    run(np.array([np.nan, -np.inf, -3e38, -200, 0, 1, 200, np.inf] + [1] * 8, np.float32), out)
    assert np.isnan(out[0])
    assert out[1:6].tolist() == [0.0, 0.0, 0.0, 1.0, 2.0]
    assert (out[6:8] >= 2.0**126).all()


def test_lanes_are_summed_and_compared() -> None:
    def emit(builder: Any, source: Any, target: Any) -> None:
        floats = v.load_vector(builder, source, v.I64(0), v.FLOATS)
        builder.store(v.sum_of_lanes(builder, floats), target)
        builder.store(v.largest_lane(builder, floats), builder.gep(target, [v.I64(1)]))

    out = np.empty(2, np.float32)
    compiled(emit)(np.array([*range(-8, 7), 40], np.float32), out)
    assert out.tolist() == [25.0, 40.0]


@pytest.mark.parametrize("width", [0, 1, 15, 16])
def test_a_load_of_some_lanes_leaves_the_others_zero(width: int) -> None:
    def emit(builder: Any, source: Any, target: Any) -> None:
        v.store_floats(builder, v.load_floats(builder, source, v.I64(0), False, v.I64(width)), target, v.I64(0))

    source, out = np.full(16, np.nan, np.float32), np.full(16, np.nan, np.float32)
    source[:width] = 3.0
    compiled(emit)(source, out)
    assert out.tolist() == [3.0] * width + [0.0] * (16 - width)


PLAIN_PROCESSOR = """
import torch
from kernels.cpu.runtime.vectors import has_bfloat16_dot
from kernels.paged import AttentionRule, LayerCache, PagedStep
from kernels.paged_attention import paged_attention, paged_attention_reference
from kernels.write_kv import write_kv
assert not has_bfloat16_dot()
torch.manual_seed(0)
query, cache = torch.randn(2, 3, 20).bfloat16(), torch.randn(2, 9, 1, 16, 20).bfloat16()
tables, starts = torch.randperm(9).view(1, 9).int(), torch.tensor([0, 2]).int()
written, slots = LayerCache(*torch.empty_like(cache)), torch.arange(9 * 16)
write_kv(*cache.transpose(2, 3).flatten(1, 2), written, slots)
lengths = {"query_start": starts, "context_lens": torch.tensor([130]).int(), "max_query_len": 2, "max_context_len": 130}
step, rule = PagedStep(block_tables=tables, slots=slots, positions=slots, **lengths), AttentionRule(scale=0.2)
ours = paged_attention(query, written, step, rule)
twin = paged_attention_reference(query, LayerCache(*cache), step, rule)
torch.testing.assert_close(ours, twin, rtol=8e-3, atol=8e-3)
"""


def test_attention_runs_on_a_processor_without_wide_vectors(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CPU_NAME": "generic", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", PLAIN_PROCESSOR]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
