"""The small ops on the CPU, one compiled call each, in fp32 and bf16. The formulas are in the files of the ops.

Each function here takes what its op's host function has already checked. torch needs three to eight kernels for each
of these, at up to 10 µs apiece for a decode batch; README.md has the timings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.cpu.runtime.launch import NUM_TASKS, CpuKernel, keep
from kernels.cpu.runtime.memory import (
    bfloat16_at,
    bits_to_float64,
    exp2,
    fetch_add,
    float32_at,
    jit,
    jit_sum,
    load,
    store,
)

_PARALLEL_FROM = 32_768  # elements; below, starting the second thread costs more than it saves
DTYPES = (torch.float32, torch.bfloat16)
_LOG2_E = np.float32(1.4426950408889634)


def _rows_per_task(rows: int, row_length: int) -> int:
    """Cut so that a task is worth its atomic increment and a batch still gives each thread several."""
    return max(1, min(8192 // max(row_length, 1), -(-rows // 8)))


# RMSNorm ----------------------------------------------------------------------------------------------------------


@jit_sum
def _square_sum(x: Any, start: int, dim: int) -> Any:
    total = np.float32(0.0)
    for i in range(dim):
        total += load(x, start + i) * load(x, start + i)
    return total


@jit
def _rms_rows(p: Any, x: Any, weight: Any, out: Any) -> None:
    rows, inner, row_stride, inner_stride, dim, chunk = p[6], p[7], p[8], p[9], p[10], p[11]
    eps = np.float32(bits_to_float64(p[12]))
    while True:
        task = fetch_add(p, 1)
        if task >= p[NUM_TASKS]:
            break
        for row in range(task * chunk, min((task + 1) * chunk, rows)):
            start = (row // inner) * row_stride + (row % inner) * inner_stride
            scale = np.float32(1.0) / np.sqrt(_square_sum(x, start, dim) / np.float32(dim) + eps)
            for i in range(dim):
                store(out, row * dim + i, load(x, start + i) * scale * load(weight, i))


def _rms_norm_float32(p: Any) -> None:
    _rms_rows(p, float32_at(p[3]), float32_at(p[4]), float32_at(p[5]))


def _rms_norm_bfloat16(p: Any) -> None:
    _rms_rows(p, bfloat16_at(p[3]), bfloat16_at(p[4]), bfloat16_at(p[5]))


_RMS_NORM = {
    torch.float32: CpuKernel(_rms_norm_float32, "9qd"),
    torch.bfloat16: CpuKernel(_rms_norm_bfloat16, "9qd"),
}


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Run `rms_norm` for x `[tokens, dim]` or `[tokens, heads, dim]`, only the last axis contiguous."""
    out = keep(torch.empty(x.shape, dtype=x.dtype))
    dim = x.shape[-1]
    inner, inner_stride = (x.shape[1], x.stride(1)) if x.dim() == 3 else (1, 0)
    rows = x.shape[0] * inner
    chunk = _rows_per_task(rows, dim)
    _RMS_NORM[x.dtype](
        -(-rows // chunk),
        *(x.data_ptr(), weight.data_ptr(), out.data_ptr()),
        *(rows, inner, x.stride(0), inner_stride, dim, chunk, eps),
        parallel=rows * dim >= _PARALLEL_FROM,
    )
    return out


@jit
def _add_rms_rows(  # noqa: PLR0917  compiled
    p: Any, x: Any, residual: Any, weight: Any, normed: Any, total: Any
) -> None:
    rows, x_stride, residual_stride, dim, chunk = p[8], p[9], p[10], p[11], p[12]
    eps = np.float32(bits_to_float64(p[13]))
    while True:
        task = fetch_add(p, 1)
        if task >= p[NUM_TASKS]:
            break
        for row in range(task * chunk, min((task + 1) * chunk, rows)):
            for i in range(dim):
                added = load(x, row * x_stride + i) + load(residual, row * residual_stride + i)
                store(total, row * dim + i, added)
            scale = np.float32(1.0) / np.sqrt(_square_sum(total, row * dim, dim) / np.float32(dim) + eps)
            for i in range(dim):
                store(normed, row * dim + i, load(total, row * dim + i) * scale * load(weight, i))


def _add_rms_norm_float32(p: Any) -> None:
    _add_rms_rows(p, float32_at(p[3]), float32_at(p[4]), float32_at(p[5]), float32_at(p[6]), float32_at(p[7]))


def _add_rms_norm_bfloat16(p: Any) -> None:
    _add_rms_rows(p, bfloat16_at(p[3]), bfloat16_at(p[4]), bfloat16_at(p[5]), bfloat16_at(p[6]), bfloat16_at(p[7]))


_ADD_RMS_NORM = {
    torch.float32: CpuKernel(_add_rms_norm_float32, "10qd"),
    torch.bfloat16: CpuKernel(_add_rms_norm_bfloat16, "10qd"),
}


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Run `add_rms_norm` for 2-D tensors, only the last axis contiguous."""
    rows, dim = x.shape
    normed, total = (keep(torch.empty((rows, dim), dtype=x.dtype)) for _ in range(2))
    chunk = _rows_per_task(rows, dim)
    _ADD_RMS_NORM[x.dtype](
        -(-rows // chunk),
        *(x.data_ptr(), residual.data_ptr(), weight.data_ptr(), normed.data_ptr(), total.data_ptr()),
        *(rows, x.stride(0), residual.stride(0), dim, chunk, eps),
        parallel=rows * dim >= _PARALLEL_FROM,
    )
    return normed, total


# SiLU · mul -------------------------------------------------------------------------------------------------------


@jit
def _silu_rows(p: Any, gate_up: Any, out: Any) -> None:
    rows, stride, width, chunk = p[5], p[6], p[7], p[8]
    while True:
        task = fetch_add(p, 1)
        if task >= p[NUM_TASKS]:
            break
        for row in range(task * chunk, min((task + 1) * chunk, rows)):
            for i in range(width):
                gate = load(gate_up, row * stride + i)
                up = load(gate_up, row * stride + width + i)
                store(out, row * width + i, gate * up / (np.float32(1.0) + exp2(-gate * _LOG2_E)))


def _silu_mul_float32(p: Any) -> None:
    _silu_rows(p, float32_at(p[3]), float32_at(p[4]))


def _silu_mul_bfloat16(p: Any) -> None:
    _silu_rows(p, bfloat16_at(p[3]), bfloat16_at(p[4]))


_SILU_MUL = {
    torch.float32: CpuKernel(_silu_mul_float32, "6q"),
    torch.bfloat16: CpuKernel(_silu_mul_bfloat16, "6q"),
}


def silu_mul(gate_up: Tensor) -> Tensor:
    """Run `silu_mul` for a 2-D tensor, only the last axis contiguous."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = keep(torch.empty((rows, width), dtype=gate_up.dtype))
    chunk = _rows_per_task(rows, 2 * width)
    _SILU_MUL[gate_up.dtype](
        -(-rows // chunk),
        *(gate_up.data_ptr(), out.data_ptr(), rows, gate_up.stride(0), width, chunk),
        parallel=rows * width >= _PARALLEL_FROM // 2,
    )
    return out
