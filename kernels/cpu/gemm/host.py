"""Matrix products: rows of x times one packed panel of columns after the other, by a selected unit.

    y[r, n] = bias[n] + Σ_k x[r, k] · W[n, k]        sums in fp32, in one order over all k; of bf16 rounded, or not

Every row sums in the same order, whatever the number of rows, so that a row's result never depends on its batch; but it
does depend on the unit. A task is one panel and a run of rows, for all of which it is read from memory once. README.md
has the timings.
"""

from __future__ import annotations

import functools
from enum import StrEnum
from typing import Any

import numba
import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.gemm import dots, floats, multiply_adds, sums, tiles
from kernels.cpu.gemm.panels import PANEL_COLUMNS, pack
from kernels.cpu.runtime.block import NUM_TASKS, Block
from kernels.cpu.runtime.launch import CpuKernel, keep
from kernels.cpu.runtime.memory import fetch_add, jit_once

PARALLEL_FROM = 65_536  # weight elements (× rows / 8 if more); below, starting the second thread costs more
_MIN_RUN = 32  # minimum rows of a task, if rows are divided at all


class Unit(StrEnum):
    """The unit of a CPU that computes a product over panels."""

    DOTS = "bf16 dot products"
    """AVX512-BF16."""
    MULTIPLY_ADDS = "fp32 multiply-adds"
    """AVX-512 or AVX2: of fp32, or of bf16 weights widened in registers."""
    TILES = "bf16 tiles"
    """AMX."""


_BLOCK = Block("x* weight* bias* out* rows x_stride depth width run out_bytes panel_bytes")
_AT = _BLOCK.at


@jit_once
def _multiply(p: Any, multiply_panel: Any, x_bytes: int) -> None:
    """Take tasks of one panel and one run of rows; the runs of a panel follow each other."""
    x, weight, bias, out = p[_AT.x], p[_AT.weight], p[_AT.bias], p[_AT.out]
    rows, run, x_stride = p[_AT.rows], p[_AT.run], p[_AT.x_stride]
    depth, width, out_bytes = p[_AT.depth], p[_AT.width], p[_AT.out_bytes]
    runs = (rows + run - 1) // run
    while True:
        task = fetch_add(p, 1)
        if task >= p[NUM_TASKS]:
            break
        panel, first = task // runs, task % runs * run
        column = panel * PANEL_COLUMNS
        matrix = x + x_bytes * first * x_stride, x_stride, out + out_bytes * (first * width + column), width, out_bytes
        place = weight + panel * p[_AT.panel_bytes], bias + 4 * column
        multiply_panel(matrix, min(run, rows - first), place, depth, min(PANEL_COLUMNS, width - column))


def _by_dots(p: Any) -> None:
    _multiply(p, dots.multiply_panel, 2)


def _by_multiply_adds(p: Any) -> None:
    _multiply(p, multiply_adds.multiply_panel, 2)


def _by_tiles(p: Any) -> None:
    _multiply(p, tiles.multiply_panel, 2)


def _of_float32(p: Any) -> None:
    _multiply(p, floats.multiply_panel, 4)


_KERNELS = {
    (Unit.DOTS, torch.bfloat16): CpuKernel(_by_dots, _BLOCK),
    (Unit.MULTIPLY_ADDS, torch.bfloat16): CpuKernel(_by_multiply_adds, _BLOCK),
    (Unit.TILES, torch.bfloat16): CpuKernel(_by_tiles, _BLOCK),
    (Unit.MULTIPLY_ADDS, torch.float32): CpuKernel(_of_float32, _BLOCK),
}
_IS_THERE = {Unit.DOTS: dots.is_there, Unit.MULTIPLY_ADDS: sums.is_there, Unit.TILES: tiles.is_there}
ROWS_AT_ONCE = {Unit.DOTS: dots.MAX_ROWS, Unit.MULTIPLY_ADDS: 8, Unit.TILES: tiles.MAX_ROWS}


@functools.cache
def can_multiply(unit: Unit, dtype: torch.dtype) -> bool:
    """Tell whether this unit exists for weights of `dtype`, and agrees with `F.linear`; tried once per process."""
    if (unit, dtype) not in _KERNELS:
        return False
    try:
        if not _IS_THERE[unit]():
            return False
        x, weight = (torch.linspace(-1, 1, rows * 33).view(rows, 33).to(dtype) for rows in (9, 50))
        product = linear(x, pack(weight), torch.zeros(2 * PANEL_COLUMNS), 50, unit=unit)
    except (AttributeError, RuntimeError, numba.core.errors.NumbaError):  # another numba, or an LLVM without bfloat
        return False
    return torch.allclose(product.float(), functional.linear(x.float(), weight.float()), rtol=0.01, atol=0.01)


def linear(
    x: Tensor, packed: Tensor, bias: Tensor, width: int, *, unit: Unit, dtype: torch.dtype | None = None
) -> Tensor:
    """Multiply x `[rows, in]` with the results of `pack` and `pack_bias`, of its dtype, to a new `[rows, width]`.

    `dtype` is x's by default, or fp32 for unrounded sums. `can_multiply(unit, x.dtype)` must have returned True in this
    process.
    """
    x = x if x.stride(-1) == 1 else x.contiguous()
    rows, depth = x.shape
    out = keep(torch.empty((rows, width), dtype=dtype or x.dtype))
    run = rows_per_task(rows, packed.shape[0], ROWS_AT_ONCE[unit])
    words = (
        x.data_ptr(), packed.data_ptr(), bias.data_ptr(), out.data_ptr(),
        rows, x.stride(0), depth, width, run, out.itemsize, packed.stride(0) * packed.itemsize,
    )  # fmt: skip
    is_parallel = width * depth * max(rows, 8) >= PARALLEL_FROM * 8
    _KERNELS[unit, x.dtype](packed.shape[0] * -(-rows // run), words, parallel=is_parallel)
    return out


def rows_per_task(rows: int, panels: int, at_once: int) -> int:
    """Keep a panel's rows together, so that it is read once, unless that leaves a thread fewer than four tasks.

    A multiple of `at_once`, the rows that a unit multiplies at a time.
    """
    num_runs = -(-4 * torch.get_num_threads() // max(panels, 1))
    run = max(-(-rows // num_runs), min(rows, _MIN_RUN), 1)
    return -(-run // at_once) * at_once
