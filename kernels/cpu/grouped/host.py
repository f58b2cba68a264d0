"""Products of grouped weights by whole numbers: activations are rounded to 8 bits first, in a call of their own."""

from __future__ import annotations

import functools
from typing import Any

import numba
import torch
from torch import Tensor

from kernels.cpu.gemm import sums
from kernels.cpu.gemm.host import PARALLEL_FROM, rows_per_task
from kernels.cpu.gemm.panels import PANEL_COLUMNS, pack_bias
from kernels.cpu.grouped.activations import round_rows
from kernels.cpu.grouped.panels import WORDS, GroupedPanels, pack
from kernels.cpu.grouped.whole_numbers import multiply_panel
from kernels.cpu.runtime.block import NUM_TASKS, Block
from kernels.cpu.runtime.launch import CpuKernel, keep
from kernels.cpu.runtime.memory import fetch_add, jit_once
from kernels.grouped_weight import Layout, filled

_BLOCK = Block(f"x* bias* out* {WORDS} rows x_bytes width run out_bytes")
_AT = _BLOCK.at
_ROWS_AT_ONCE = 8  # a multiple of what a unit multiplies at a time


@jit_once
def _multiply(p: Any, multiply_panel: Any) -> None:
    """Take tasks of one panel and one run of rows; the runs of a panel follow each other."""
    rows, run, width, out_bytes = p[_AT.rows], p[_AT.run], p[_AT.width], p[_AT.out_bytes]
    runs = (rows + run - 1) // run
    while True:
        task = fetch_add(p, 1)
        if task >= p[NUM_TASKS]:
            break
        panel, first = task // runs, task % runs * run
        column = panel * PANEL_COLUMNS
        out = p[_AT.out] + out_bytes * (first * width + column)
        matrix = p[_AT.x] + first * p[_AT.x_bytes], p[_AT.x_bytes], out, width, out_bytes
        stored = (
            p[_AT.numbers] + panel * p[_AT.panel_bytes], p[_AT.groups],
            p[_AT.num_scales], p[_AT.scale_shift], p[_AT.scale_bytes], p[_AT.has_minima],
        )  # fmt: skip
        multiply_panel(
            matrix, min(run, rows - first), stored, p[_AT.bias] + 4 * column, min(PANEL_COLUMNS, width - column)
        )


_OF_4_BITS, _OF_8_BITS = multiply_panel[4], multiply_panel[8]


def _multiply_4(p: Any) -> None:
    _multiply(p, _OF_4_BITS)


def _multiply_8(p: Any) -> None:
    _multiply(p, _OF_8_BITS)


_KERNELS = {4: CpuKernel(_multiply_4, _BLOCK), 8: CpuKernel(_multiply_8, _BLOCK)}


@functools.cache
def can_multiply() -> bool:
    """Tell whether whole numbers are multiplied here, and agree with the widened weight; tried once per process."""
    try:
        if not sums.is_there():
            return False
        products = [_example(layout) for layout in (_SIGNED, _POSITIVE)]
    except (AttributeError, RuntimeError, numba.core.errors.NumbaError):  # another numba or LLVM
        return False
    return all(torch.allclose(product, expected, rtol=0.02, atol=0.02) for product, expected in products)


_SIGNED = Layout(bits=8, scale_bytes=2, has_minima=False)
_POSITIVE = Layout(bits=4, scale_bytes=4, has_minima=True)


def _example(layout: Layout) -> tuple[Tensor, Tensor]:
    """Return a small product and what it should be."""
    weight, x = filled(layout, (50, 64)), torch.linspace(-1, 1, 9 * 64).view(9, 64)
    return linear(x, pack(weight), pack_bias(None, 50), dtype=torch.float32), x @ weight.widened().T


def linear(x: Tensor, panels: GroupedPanels, bias: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Multiply x `[rows, in]`, bf16 or fp32, with a packed weight to a new `[rows, out]`; `bias` is `pack_bias`'s."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    rows, width, num_panels = x.shape[0], panels.width, panels.memory.shape[0]
    rounded = round_rows(x, zero=panels.layout.zero)
    out = keep(torch.empty((rows, width), dtype=dtype))
    run = rows_per_task(rows, num_panels, _ROWS_AT_ONCE)
    words = (
        rounded.data_ptr(), bias.data_ptr(), out.data_ptr(), *panels.words,
        rows, rounded.stride(0), width, run, out.itemsize,
    )  # fmt: skip
    is_parallel = width * panels.depth * max(rows, 8) >= PARALLEL_FROM * 8
    _KERNELS[panels.layout.bits](num_panels * -(-rows // run), words, parallel=is_parallel)
    return out
