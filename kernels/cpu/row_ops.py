"""The small ops on the CPU, one compiled call each, in fp32 and bf16. The formulas are in the ops' files.

Each function here takes arguments that its op's host function has already checked. torch needs three to eight kernels
for each of these, at up to 10 µs each for a decode batch; README.md has the timings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.cpu.row_sums import sum_of_squares
from kernels.cpu.runtime.block import NUM_TASKS, Block
from kernels.cpu.runtime.launch import CpuKernel, keep
from kernels.cpu.runtime.memory import (
    bfloat16_at,
    bits_to_float64,
    exp2,
    fetch_add,
    float32_at,
    jit_once,
    load,
    pointer_like,
    store,
)

PARALLEL_FROM = 32_768  # elements; below, starting the second thread costs more than it saves
DTYPES = (torch.float32, torch.bfloat16)
_LOG2_E = np.float32(1.4426950408889634)


def rows_per_task(rows: int, row_length: int) -> int:
    """Choose rows per task so that a task is worth its atomic increment and each thread still gets several."""
    return max(1, min(8192 // max(row_length, 1), -(-rows // 8)))


# RMSNorm ----------------------------------------------------------------------------------------------------------


_RMS_BLOCK = Block("x* weight* out* rows inner row_stride inner_stride dim per_task eps:f64")
_RMS_AT = _RMS_BLOCK.at


@jit_once
def _rms_rows(p: Any, x: Any) -> None:
    weight, out = pointer_like(x, p[_RMS_AT.weight]), pointer_like(x, p[_RMS_AT.out])
    rows, inner, dim, per_task = p[_RMS_AT.rows], p[_RMS_AT.inner], p[_RMS_AT.dim], p[_RMS_AT.per_task]
    row_stride, inner_stride = p[_RMS_AT.row_stride], p[_RMS_AT.inner_stride]
    eps = np.float32(bits_to_float64(p[_RMS_AT.eps]))
    while True:
        task = fetch_add(p, 1)
        if task >= p[NUM_TASKS]:
            break
        for row in range(task * per_task, min((task + 1) * per_task, rows)):
            start = (row // inner) * row_stride + (row % inner) * inner_stride
            scale = np.float32(1.0) / np.sqrt(sum_of_squares(x, start, dim, np.float32(0.0)) / np.float32(dim) + eps)
            for i in range(dim):
                store(out, row * dim + i, load(x, start + i) * scale * load(weight, i))


def _rms_norm_float32(p: Any) -> None:
    _rms_rows(p, float32_at(p[_RMS_AT.x]))


def _rms_norm_bfloat16(p: Any) -> None:
    _rms_rows(p, bfloat16_at(p[_RMS_AT.x]))


_RMS_NORM = {
    torch.float32: CpuKernel(_rms_norm_float32, _RMS_BLOCK),
    torch.bfloat16: CpuKernel(_rms_norm_bfloat16, _RMS_BLOCK),
}


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Run `rms_norm` for x `[tokens, dim]` or `[tokens, heads, dim]`, only the last axis contiguous."""
    out = keep(torch.empty(x.shape, dtype=x.dtype))
    dim = x.shape[-1]
    inner, inner_stride = (x.shape[1], x.stride(1)) if x.dim() == 3 else (1, 0)
    rows = x.shape[0] * inner
    per_task = rows_per_task(rows, dim)
    _RMS_NORM[x.dtype](
        -(-rows // per_task),
        (x.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, inner, x.stride(0), inner_stride, dim, per_task, eps),
        parallel=rows * dim >= PARALLEL_FROM,
    )
    return out


_ADD_RMS_BLOCK = Block(
    """
    x* residual* weight* normed* total*
    rows x_stride residual_stride dim per_task eps:f64
    """
)
_ADD_RMS_AT = _ADD_RMS_BLOCK.at


@jit_once
def _add_rms_rows(p: Any, x: Any) -> None:
    residual, weight = pointer_like(x, p[_ADD_RMS_AT.residual]), pointer_like(x, p[_ADD_RMS_AT.weight])
    normed, total = pointer_like(x, p[_ADD_RMS_AT.normed]), pointer_like(x, p[_ADD_RMS_AT.total])
    rows, dim, per_task = p[_ADD_RMS_AT.rows], p[_ADD_RMS_AT.dim], p[_ADD_RMS_AT.per_task]
    x_stride, residual_stride = p[_ADD_RMS_AT.x_stride], p[_ADD_RMS_AT.residual_stride]
    eps = np.float32(bits_to_float64(p[_ADD_RMS_AT.eps]))
    while True:
        task = fetch_add(p, 1)
        if task >= p[NUM_TASKS]:
            break
        for row in range(task * per_task, min((task + 1) * per_task, rows)):
            for i in range(dim):
                added = load(x, row * x_stride + i) + load(residual, row * residual_stride + i)
                store(total, row * dim + i, added)
            scale = np.float32(1.0) / np.sqrt(
                sum_of_squares(total, row * dim, dim, np.float32(0.0)) / np.float32(dim) + eps
            )
            for i in range(dim):
                store(normed, row * dim + i, load(total, row * dim + i) * scale * load(weight, i))


def _add_rms_norm_float32(p: Any) -> None:
    _add_rms_rows(p, float32_at(p[_ADD_RMS_AT.x]))


def _add_rms_norm_bfloat16(p: Any) -> None:
    _add_rms_rows(p, bfloat16_at(p[_ADD_RMS_AT.x]))


_ADD_RMS_NORM = {
    torch.float32: CpuKernel(_add_rms_norm_float32, _ADD_RMS_BLOCK),
    torch.bfloat16: CpuKernel(_add_rms_norm_bfloat16, _ADD_RMS_BLOCK),
}


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Run `add_rms_norm` for 2-D tensors, only the last axis contiguous."""
    rows, dim = x.shape
    normed, total = keep(torch.empty((rows, dim), dtype=x.dtype)), keep(torch.empty((rows, dim), dtype=x.dtype))
    per_task = rows_per_task(rows, dim)
    words = (
        x.data_ptr(), residual.data_ptr(), weight.data_ptr(), normed.data_ptr(), total.data_ptr(),
        rows, x.stride(0), residual.stride(0), dim, per_task, eps,
    )  # fmt: skip
    _ADD_RMS_NORM[x.dtype](-(-rows // per_task), words, parallel=rows * dim >= PARALLEL_FROM)
    return normed, total


# SiLU · mul -------------------------------------------------------------------------------------------------------


_SILU_BLOCK = Block("gate_up* out* rows stride width per_task")
_SILU_AT = _SILU_BLOCK.at


@jit_once
def _silu_rows(p: Any, gate_up: Any) -> None:
    out = pointer_like(gate_up, p[_SILU_AT.out])
    rows, stride, width, per_task = p[_SILU_AT.rows], p[_SILU_AT.stride], p[_SILU_AT.width], p[_SILU_AT.per_task]
    while True:
        task = fetch_add(p, 1)
        if task >= p[NUM_TASKS]:
            break
        for row in range(task * per_task, min((task + 1) * per_task, rows)):
            for i in range(width):
                gate = load(gate_up, row * stride + i)
                up = load(gate_up, row * stride + width + i)
                store(out, row * width + i, gate * up / (np.float32(1.0) + exp2(-gate * _LOG2_E)))


def _silu_mul_float32(p: Any) -> None:
    _silu_rows(p, float32_at(p[_SILU_AT.gate_up]))


def _silu_mul_bfloat16(p: Any) -> None:
    _silu_rows(p, bfloat16_at(p[_SILU_AT.gate_up]))


_SILU_MUL = {
    torch.float32: CpuKernel(_silu_mul_float32, _SILU_BLOCK),
    torch.bfloat16: CpuKernel(_silu_mul_bfloat16, _SILU_BLOCK),
}


def silu_mul(gate_up: Tensor) -> Tensor:
    """Run `silu_mul` for a 2-D tensor, only the last axis contiguous."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = keep(torch.empty((rows, width), dtype=gate_up.dtype))
    per_task = rows_per_task(rows, 2 * width)
    _SILU_MUL[gate_up.dtype](
        -(-rows // per_task),
        (gate_up.data_ptr(), out.data_ptr(), rows, gate_up.stride(0), width, per_task),
        parallel=rows * width >= PARALLEL_FROM // 2,
    )
    return out
