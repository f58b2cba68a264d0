"""The layout of a packed bf16 weight: panels of 48 columns, and in a panel pairs of k side by side.

A weight lies as [panel][k / 2][48 columns][2], so that a 64-byte line holds one pair of k for 16 columns: what one
`vdpbf16ps` takes, what one shift and one mask widen to two vectors of floats, and a row of an AMX tile. So every unit
reads the same bytes. Knows no unit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.cpu.runtime import huge_pages
from kernels.cpu.runtime.block import FAULT, NUM_TASKS, Block
from kernels.cpu.runtime.launch import CpuKernel
from kernels.cpu.runtime.memory import bfloat16_at, fetch_add, int64_at
from kernels.errors import require

PANEL_COLUMNS = 48

_GATHER_BLOCK = Block("weight* ids* out* depth width")
_GATHER_AT = _GATHER_BLOCK.at


def _gather_rows(p: Any) -> None:
    ids, depth, width = int64_at(p[_GATHER_AT.ids]), p[_GATHER_AT.depth], p[_GATHER_AT.width]
    source, target = bfloat16_at(p[_GATHER_AT.weight]), bfloat16_at(p[_GATHER_AT.out])
    pairs = (depth + 1) // 2
    while True:
        task = fetch_add(p, 1)
        if task >= p[NUM_TASKS]:
            break
        row = ids[task]
        if row < 0 or row >= width:
            p[FAULT] = 1
            continue
        start = (row // PANEL_COLUMNS * pairs * PANEL_COLUMNS + row % PANEL_COLUMNS) * 2
        for k in range(depth):
            target[task * depth + k] = source[start + k // 2 * (2 * PANEL_COLUMNS) + k % 2]


_GATHER_ROWS = CpuKernel(_gather_rows, _GATHER_BLOCK)


def pack(weight: Tensor) -> Tensor:
    """Return a copy of a bf16 weight `[out, in]` as `[panels, pairs of in, 48, 2]`, filled up with zeros."""
    width, depth = weight.shape
    panels, pairs = -(-width // PANEL_COLUMNS), -(-depth // 2)
    padded = weight.new_zeros((panels * PANEL_COLUMNS, 2 * pairs))
    padded[:width, :depth] = weight
    packed = huge_pages.zeros((panels, pairs, PANEL_COLUMNS, 2), weight.dtype)
    return packed.copy_(padded.view(panels, PANEL_COLUMNS, pairs, 2).transpose(1, 2))


def pack_bias(bias: Tensor | None, width: int) -> Tensor:
    """Return the bias in fp32, zeros where there is none, one for each packed column."""
    padded = torch.zeros(-(-width // PANEL_COLUMNS) * PANEL_COLUMNS)
    if bias is not None:
        padded[:width] = bias
    return padded


def gather_rows(packed: Tensor, ids: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return rows `ids` `[count]` int64 of the weight `[out, in]` = `shape` that was packed, bit for bit.

    Raises `KernelInputError` for an id outside [0, out).
    """
    width, depth = shape
    out = torch.empty((ids.shape[0], depth), dtype=torch.bfloat16)
    fault = _GATHER_ROWS(
        ids.shape[0],
        (packed.data_ptr(), ids.data_ptr(), out.data_ptr(), depth, width),
        parallel=ids.shape[0] >= 64,
    )
    require(not fault, f"an id points out of range: ids must lie in [0, {width})")
    return out
