"""LayerNorm on the CPU, alone and fused with the residual addition, in fp32 and bf16.

The formulas are in the op's file. The functions here take arguments that the op's host functions have already checked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.cpu.row_ops import PARALLEL_FROM, rows_per_task
from kernels.cpu.row_sums import sum_of, sum_of_squares
from kernels.cpu.runtime.block import NUM_TASKS, Block
from kernels.cpu.runtime.launch import CpuKernel, keep
from kernels.cpu.runtime.memory import (
    bfloat16_at,
    bits_to_float64,
    fetch_add,
    float32_at,
    jit_once,
    load,
    pointer_like,
    store,
)

DTYPES = (torch.float32, torch.bfloat16)

_BLOCK = Block("x* residual* weight* bias* normed* total* rows x_stride residual_stride dim per_task eps:f64")
_AT = _BLOCK.at


@jit_once
def _norm_rows(p: Any, x: Any) -> None:
    """Normalise rows of x, or of x + residual, which are stored too."""
    residual, total = pointer_like(x, p[_AT.residual]), pointer_like(x, p[_AT.total])
    normed, weight, bias = pointer_like(x, p[_AT.normed]), float32_at(p[_AT.weight]), float32_at(p[_AT.bias])
    rows, dim, per_task = p[_AT.rows], p[_AT.dim], p[_AT.per_task]
    x_stride, residual_stride = p[_AT.x_stride], p[_AT.residual_stride]
    eps = np.float32(bits_to_float64(p[_AT.eps]))
    while True:
        task = fetch_add(p, 1)
        if task >= p[NUM_TASKS]:
            break
        for row in range(task * per_task, min((task + 1) * per_task, rows)):
            source, start, out = x, row * x_stride, row * dim
            if p[_AT.residual] != 0:
                for i in range(dim):
                    store(total, out + i, load(x, start + i) + load(residual, row * residual_stride + i))
                source, start = total, out
            mean = sum_of(source, start, dim) / np.float32(dim)
            variance = sum_of_squares(source, start, dim, mean) / np.float32(dim)
            scale = np.float32(1.0) / np.sqrt(variance + eps)
            for i in range(dim):
                store(normed, out + i, (load(source, start + i) - mean) * scale * weight[i] + bias[i])


def _norm_float32(p: Any) -> None:
    _norm_rows(p, float32_at(p[_AT.x]))


def _norm_bfloat16(p: Any) -> None:
    _norm_rows(p, bfloat16_at(p[_AT.x]))


_KERNELS = {
    torch.float32: CpuKernel(_norm_float32, _BLOCK),
    torch.bfloat16: CpuKernel(_norm_bfloat16, _BLOCK),
}


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Run `layer_norm` for a 2-D tensor, only the last axis contiguous."""
    normed = keep(torch.empty(x.shape, dtype=x.dtype))
    _run(x, None, (weight, bias), (normed, None), eps)
    return normed


def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Run `add_layer_norm` for 2-D tensors, only the last axis contiguous."""
    normed, total = keep(torch.empty(x.shape, dtype=x.dtype)), keep(torch.empty(x.shape, dtype=x.dtype))
    _run(x, residual, (weight, bias), (normed, total), eps)
    return normed, total


def _run(
    x: Tensor, residual: Tensor | None, factors: tuple[Tensor, Tensor], out: tuple[Tensor, Tensor | None], eps: float
) -> None:
    (weight, bias), (normed, total), (rows, dim) = factors, out, x.shape
    per_task = rows_per_task(rows, dim)
    words = (
        x.data_ptr(), _address(residual), weight.data_ptr(), bias.data_ptr(), normed.data_ptr(), _address(total),
        rows, x.stride(0), 0 if residual is None else residual.stride(0), dim, per_task, eps,
    )  # fmt: skip
    _KERNELS[x.dtype](-(-rows // per_task), words, parallel=rows * dim >= PARALLEL_FROM)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
