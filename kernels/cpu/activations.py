"""Activations of encoders on the CPU, alone or times a gate, in fp32 and bf16. The formulas are in the op's file."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.cpu.row_ops import PARALLEL_FROM, rows_per_task
from kernels.cpu.runtime.block import NUM_TASKS, Block
from kernels.cpu.runtime.launch import CpuKernel, keep
from kernels.cpu.runtime.memory import (
    bfloat16_at,
    exp2,
    fetch_add,
    float32_at,
    jit,
    jit_once,
    load,
    pointer_like,
    store,
)

DTYPES = (torch.float32, torch.bfloat16)

_BLOCK = Block("x* out* rows stride width per_task is_gated")
_AT = _BLOCK.at

_ONE, _HALF = np.float32(1.0), np.float32(0.5)
_FAR = np.float32(5.5)
"""From here on u · erfc(u / √2) / 2 is below 1.1e-7."""
_TO_UNIT = np.float32(2.0 / 5.5)
_TANH_SCALE = np.float32(-2.0 * 1.4426950408889634 * 0.7978845608028654)
"""−2 · log2(e) · sqrt(2 / π): 1 + tanh(z) is 2 / (1 + exp(−2z))."""
_CUBIC = np.float32(0.044715)


@jit
def _gelu(x: Any) -> Any:
    """Compute x · Φ(x) as max(x, 0) − u · erfc(u / √2) / 2 with u = |x|, without an exponential or a division.

    The second term is a polynomial of degree 16 in u, least squares on Chebyshev nodes of [0, 5.5]: 1.5e-7
    (absolute) before its own rounding, 2.4e-7 with it. A NaN stays NaN.
    """
    size = abs(x)
    t = (size if size < _FAR else _FAR) * _TO_UNIT - _ONE
    p = np.float32(-1.56969204e-02)
    p = p * t + np.float32(-5.22047356e-04)
    p = p * t + np.float32(9.89243687e-02)
    p = p * t + np.float32(-3.74604078e-02)
    p = p * t + np.float32(-2.56906213e-01)
    p = p * t + np.float32(2.32402076e-01)
    p = p * t + np.float32(2.72212525e-01)
    p = p * t + np.float32(-5.45276399e-01)
    p = p * t + np.float32(1.51383868e-01)
    p = p * t + np.float32(4.59697343e-01)
    p = p * t + np.float32(-6.28322923e-01)
    p = p * t + np.float32(2.60418265e-01)
    p = p * t + np.float32(1.78947582e-01)
    p = p * t + np.float32(-3.08680897e-01)
    p = p * t + np.float32(1.91263371e-01)
    p = p * t + np.float32(-6.05779808e-02)
    p = p * t + np.float32(8.19437015e-03)
    return _HALF * (x + size) - p


@jit
def _gelu_tanh(x: Any) -> Any:
    return x / (_ONE + exp2(_TANH_SCALE * (x + _CUBIC * x * x * x)))


@jit
def _relu(x: Any) -> Any:
    return np.float32(0.0) if x < np.float32(0.0) else x


@jit_once
def _rows(p: Any, x: Any, function: Any) -> None:
    out = pointer_like(x, p[_AT.out])
    rows, stride, width, per_task = p[_AT.rows], p[_AT.stride], p[_AT.width], p[_AT.per_task]
    while True:
        task = fetch_add(p, 1)
        if task >= p[NUM_TASKS]:
            break
        for row in range(task * per_task, min((task + 1) * per_task, rows)):
            if p[_AT.is_gated] != 0:
                for i in range(width):
                    gate = load(x, row * stride + width + i)
                    store(out, row * width + i, function(load(x, row * stride + i)) * gate)
            else:
                for i in range(width):
                    store(out, row * width + i, function(load(x, row * stride + i)))


def _gelu_float32(p: Any) -> None:
    _rows(p, float32_at(p[_AT.x]), _gelu)


def _gelu_bfloat16(p: Any) -> None:
    _rows(p, bfloat16_at(p[_AT.x]), _gelu)


def _gelu_tanh_float32(p: Any) -> None:
    _rows(p, float32_at(p[_AT.x]), _gelu_tanh)


def _gelu_tanh_bfloat16(p: Any) -> None:
    _rows(p, bfloat16_at(p[_AT.x]), _gelu_tanh)


def _relu_float32(p: Any) -> None:
    _rows(p, float32_at(p[_AT.x]), _relu)


def _relu_bfloat16(p: Any) -> None:
    _rows(p, bfloat16_at(p[_AT.x]), _relu)


_KERNELS = {
    ("gelu", torch.float32): CpuKernel(_gelu_float32, _BLOCK),
    ("gelu", torch.bfloat16): CpuKernel(_gelu_bfloat16, _BLOCK),
    ("gelu_tanh", torch.float32): CpuKernel(_gelu_tanh_float32, _BLOCK),
    ("gelu_tanh", torch.bfloat16): CpuKernel(_gelu_tanh_bfloat16, _BLOCK),
    ("relu", torch.float32): CpuKernel(_relu_float32, _BLOCK),
    ("relu", torch.bfloat16): CpuKernel(_relu_bfloat16, _BLOCK),
}


def activate(x: Tensor, name: str, *, is_gated: bool) -> Tensor:
    """Run `activate` for a 2-D tensor, only the last axis contiguous."""
    rows, width = x.shape[0], x.shape[1] // 2 if is_gated else x.shape[1]
    out = keep(torch.empty((rows, width), dtype=x.dtype))
    per_task = rows_per_task(rows, x.shape[1])
    words = x.data_ptr(), out.data_ptr(), rows, x.stride(0), width, per_task, int(is_gated)
    _KERNELS[name, x.dtype](-(-rows // per_task), words, parallel=rows * width >= PARALLEL_FROM // 2)
    return out
