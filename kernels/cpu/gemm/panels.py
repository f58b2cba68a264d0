"""The layout of a packed weight: panels of 48 columns, in a bf16 panel with adjacent pairs of k.

A bf16 weight is stored as [panel][k / 2][48 columns][2], so that a 64-byte line holds one pair of k for 16 columns: the
operand of one `vdpbf16ps`, of one shift and one mask that widen to two vectors of floats, and a row of an AMX tile. So
every unit reads the same bytes. An fp32 weight is stored as [panel][k][48 columns][1].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.runtime import huge_pages
from kernels.cpu.runtime.block import FAULT, NUM_TASKS, Block
from kernels.cpu.runtime.launch import CpuKernel
from kernels.cpu.runtime.memory import bfloat16_at, fetch_add, float32_at, int64_at, jit_once
from kernels.errors import require

PANEL_COLUMNS = 48

_GATHER_BLOCK = Block("weight* ids* out* depth width")
_GATHER_AT = _GATHER_BLOCK.at


@jit_once
def _gather_rows(p: Any, source: Any, target: Any, together: int) -> None:
    """Copy rows of a weight with so many numbers of k side by side."""
    ids, depth, width = int64_at(p[_GATHER_AT.ids]), p[_GATHER_AT.depth], p[_GATHER_AT.width]
    line = PANEL_COLUMNS * together
    panel = (depth + together - 1) // together * line
    while True:
        task = fetch_add(p, 1)
        if task >= p[NUM_TASKS]:
            break
        row = ids[task]
        if row < 0 or row >= width:
            p[FAULT] = 1
            continue
        start = row // PANEL_COLUMNS * panel + row % PANEL_COLUMNS * together
        for k in range(depth):
            target[task * depth + k] = source[start + k // together * line + k % together]


def _gather_float32(p: Any) -> None:
    _gather_rows(p, float32_at(p[_GATHER_AT.weight]), float32_at(p[_GATHER_AT.out]), 1)


def _gather_bfloat16(p: Any) -> None:
    _gather_rows(p, bfloat16_at(p[_GATHER_AT.weight]), bfloat16_at(p[_GATHER_AT.out]), 2)


_GATHER_ROWS = {
    torch.float32: CpuKernel(_gather_float32, _GATHER_BLOCK),
    torch.bfloat16: CpuKernel(_gather_bfloat16, _GATHER_BLOCK),
}
_TOGETHER = {torch.float32: 1, torch.bfloat16: 2}
"""Adjacent numbers of k."""


def pack(weight: Tensor) -> Tensor:
    """Return a copy of a weight `[out, in]` as `[panels, pairs of in, 48, 2]` (bf16) or `[panels, in, 48, 1]` (fp32).

    Padded with zeros.
    """
    width, depth = weight.shape
    together = _TOGETHER[weight.dtype]
    whole, steps = width // PANEL_COLUMNS, -(-depth // together)
    packed = huge_pages.zeros((-(-width // PANEL_COLUMNS), steps, PANEL_COLUMNS, together), weight.dtype)
    _fill(packed[:whole], weight[: whole * PANEL_COLUMNS])
    if width % PANEL_COLUMNS:  # without this the largest part of a weight would be copied once more
        _fill(packed[whole:], functional.pad(weight[whole * PANEL_COLUMNS :], (0, 0, 0, -width % PANEL_COLUMNS)))
    return packed


def _fill(panels: Tensor, rows: Tensor) -> None:
    """Write rows `[panels · 48, in]` of a weight to its panels."""
    count, steps, columns, together = panels.shape
    missing = together * steps - rows.shape[1]
    is_whole = missing == 0 and rows.storage_offset() % together == 0
    words = (rows.contiguous() if is_whole else functional.pad(rows, (0, missing))).view(torch.int32)
    panels.view(torch.int32).flatten(2).copy_(words.view(count, columns, steps).transpose(1, 2))


def pack_bias(bias: Tensor | None, width: int) -> Tensor:
    """Return the bias in fp32, zeros if there is none, one for each packed column."""
    padded = torch.zeros(-(-width // PANEL_COLUMNS) * PANEL_COLUMNS)
    if bias is not None:
        padded[:width] = bias
    return padded


def gather_rows(packed: Tensor, ids: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return rows `ids` `[count]`, integers, of the packed weight `[out, in]` = `shape`, bit for bit.

    Raises `KernelInputError` for an id outside [0, out).
    """
    width, depth = shape
    ids = ids.to(torch.int64).contiguous()
    rows = ids.shape[0]
    out = torch.empty((rows, depth), dtype=packed.dtype)
    words = packed.data_ptr(), ids.data_ptr(), out.data_ptr(), depth, width
    fault = _GATHER_ROWS[packed.dtype](rows, words, parallel=rows >= 64)
    require(not fault, f"an id points out of range: ids must lie in [0, {width})")
    return out
