"""Products of grouped weights by the units of cpu/gemm/: each task widens its panel into memory that stays cached.

The bits are those of the weight widened at load, whatever the unit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.cpu.gemm import dots, floats, multiply_adds, tiles
from kernels.cpu.gemm.host import PARALLEL_FROM, ROWS_AT_ONCE, Unit, rows_per_task
from kernels.cpu.gemm.panels import PANEL_COLUMNS
from kernels.cpu.grouped.panels import WORDS, GroupedPanels
from kernels.cpu.grouped.scratch import scratch
from kernels.cpu.grouped.widen import widen_panel
from kernels.cpu.runtime.block import NUM_TASKS, Block
from kernels.cpu.runtime.launch import CpuKernel, keep
from kernels.cpu.runtime.memory import element, fetch_add, jit_once

_BLOCK = Block(f"x* bias* out* scratch* {WORDS} rows x_stride depth width run out_bytes scratch_bytes slots slot")
_AT = _BLOCK.at


@jit_once
def _multiply(p: Any, widen: Any, multiply_panel: Any, x_bytes: int) -> None:
    """Take tasks of one panel and one run of rows; each thread widens panels into a slot of its own.

    Threads of a call take consecutive slots, and there are as many slots as threads.
    """
    rows, run, x_stride, width, out_bytes = p[_AT.rows], p[_AT.run], p[_AT.x_stride], p[_AT.width], p[_AT.out_bytes]
    layout = p[_AT.num_scales], p[_AT.scale_shift], p[_AT.scale_bytes], p[_AT.has_minima], p[_AT.zero]
    widened = p[_AT.scratch] + fetch_add(element(p, _AT.slot), 1) % p[_AT.slots] * p[_AT.scratch_bytes]
    runs = (rows + run - 1) // run
    while True:
        task = fetch_add(p, 1)
        if task >= p[NUM_TASKS]:
            break
        panel, first = task // runs, task % runs * run
        column = panel * PANEL_COLUMNS
        widen(p[_AT.numbers] + panel * p[_AT.panel_bytes], p[_AT.groups], layout, widened)
        out = p[_AT.out] + out_bytes * (first * width + column)
        matrix = p[_AT.x] + x_bytes * first * x_stride, x_stride, out, width, out_bytes
        place = widened, p[_AT.bias] + 4 * column
        multiply_panel(matrix, min(run, rows - first), place, p[_AT.depth], min(PANEL_COLUMNS, width - column))


_WIDEN_4_TO_HALVES, _WIDEN_8_TO_HALVES = widen_panel[4, 2], widen_panel[8, 2]
_WIDEN_4_TO_FLOATS, _WIDEN_8_TO_FLOATS = widen_panel[4, 4], widen_panel[8, 4]


def _dots_4(p: Any) -> None:
    _multiply(p, _WIDEN_4_TO_HALVES, dots.multiply_panel, 2)


def _dots_8(p: Any) -> None:
    _multiply(p, _WIDEN_8_TO_HALVES, dots.multiply_panel, 2)


def _multiply_adds_4(p: Any) -> None:
    _multiply(p, _WIDEN_4_TO_HALVES, multiply_adds.multiply_panel, 2)


def _multiply_adds_8(p: Any) -> None:
    _multiply(p, _WIDEN_8_TO_HALVES, multiply_adds.multiply_panel, 2)


def _tiles_4(p: Any) -> None:
    _multiply(p, _WIDEN_4_TO_HALVES, tiles.multiply_panel, 2)


def _tiles_8(p: Any) -> None:
    _multiply(p, _WIDEN_8_TO_HALVES, tiles.multiply_panel, 2)


def _float32_4(p: Any) -> None:
    _multiply(p, _WIDEN_4_TO_FLOATS, floats.multiply_panel, 4)


def _float32_8(p: Any) -> None:
    _multiply(p, _WIDEN_8_TO_FLOATS, floats.multiply_panel, 4)


_KERNELS = {
    (Unit.DOTS, torch.bfloat16, 4): CpuKernel(_dots_4, _BLOCK),
    (Unit.DOTS, torch.bfloat16, 8): CpuKernel(_dots_8, _BLOCK),
    (Unit.MULTIPLY_ADDS, torch.bfloat16, 4): CpuKernel(_multiply_adds_4, _BLOCK),
    (Unit.MULTIPLY_ADDS, torch.bfloat16, 8): CpuKernel(_multiply_adds_8, _BLOCK),
    (Unit.TILES, torch.bfloat16, 4): CpuKernel(_tiles_4, _BLOCK),
    (Unit.TILES, torch.bfloat16, 8): CpuKernel(_tiles_8, _BLOCK),
    (Unit.MULTIPLY_ADDS, torch.float32, 4): CpuKernel(_float32_4, _BLOCK),
    (Unit.MULTIPLY_ADDS, torch.float32, 8): CpuKernel(_float32_8, _BLOCK),
}


def linear(x: Tensor, panels: GroupedPanels, bias: Tensor, *, unit: Unit, dtype: torch.dtype) -> Tensor:
    """Multiply x `[rows, in]` with a packed weight to a new `[rows, out]`, of x's dtype or fp32.

    `bias` is `pack_bias`'s. `can_multiply(unit, x.dtype)` of cpu/gemm/ must have returned True in this process.
    """
    x = x if x.stride(-1) == 1 else x.contiguous()
    rows, (width, depth) = x.shape[0], (panels.width, panels.depth)
    out = keep(torch.empty((rows, width), dtype=dtype))
    num_panels = panels.memory.shape[0]
    run = rows_per_task(rows, num_panels, ROWS_AT_ONCE[unit])
    slots, scratch_bytes = torch.get_num_threads(), depth * PANEL_COLUMNS * x.itemsize
    memory = keep(scratch(slots * scratch_bytes))
    words = (
        x.data_ptr(), bias.data_ptr(), out.data_ptr(), memory.data_ptr(), *panels.words,
        rows, x.stride(0), depth, width, run, out.itemsize, scratch_bytes, slots, 0,
    )  # fmt: skip
    is_parallel = width * depth * max(rows, 8) >= PARALLEL_FROM * 8
    kernel = _KERNELS[unit, x.dtype, panels.layout.bits]
    kernel(num_panels * -(-rows // run), words, parallel=is_parallel)
    return out
