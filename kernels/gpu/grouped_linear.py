"""The Triton kernel of `grouped_linear`: numbers of a packed weight are widened in registers and multiplied there.

A program owns a tile of rows × columns and walks a row of the weight byte by byte. A byte of 4 bits holds two numbers
that are 16 apart, so its low and its high half each have a product of their own, with the columns of x that belong to
them: nothing is shuffled between threads. Widened numbers are rounded to x's dtype, so their bits are those of a weight
that was widened when it was loaded; sums are fp32, in the order of the tiles. Nothing here reads a tensor on the host,
so launches can be captured in a CUDA graph. Formula and twin: grouped_linear.py.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton reads the annotations of its kernels, and only tl.constexpr means something to it)

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels.gpu.backend import jit, launch, tl
from kernels.grouped_weight import GROUP, GroupedWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedConfig:
    """Tile sizes of one launch: rows, columns, and bytes of the weight's rows; warps, pipeline depth."""

    block_m: int
    block_n: int
    block_bytes: int
    num_warps: int
    num_stages: int


def grouped_config(*, rows: int, bits: int, element_bytes: int) -> GroupedConfig:
    """Choose the tiles: few rows get narrow ones, so that all of a GPU reads the weight; not tuned by measurement.

    Three sizes by rows, so that few variants are compiled. None spills registers or takes more than 163 KiB of shared
    memory on sm_80, sm_90 and sm_100 (ptxas of Triton 3.9). Products of fp32 run on the ordinary cores, in registers.
    """
    if element_bytes == 4:
        return GroupedConfig(block_m=16 if rows <= 16 else 32, block_n=32, block_bytes=32, num_warps=4, num_stages=2)
    if rows <= 16:
        return GroupedConfig(block_m=16, block_n=32, block_bytes=64, num_warps=4, num_stages=4)
    size, num_warps = (64, 4) if rows <= 64 else (128, 8)
    return GroupedConfig(block_m=size, block_n=size, block_bytes=8 * bits, num_warps=num_warps, num_stages=3)


def grouped_linear_triton(x: Tensor, weight: GroupedWeight, bias: Tensor | None, *, dtype: torch.dtype) -> Tensor:
    """Launch the Triton kernel of `grouped_linear`; the arguments are already checked."""
    rows, (width, depth), layout = x.shape[0], weight.shape, weight.layout
    out = torch.empty((rows, width), dtype=dtype, device=x.device)
    if rows == 0:
        return out
    config = grouped_config(rows=rows, bits=layout.bits, element_bytes=x.element_size())
    numbers, scales = weight.numbers.contiguous(), weight.scales.contiguous()
    minima = scales if weight.minima is None else weight.minima.contiguous()  # unread if there are none
    launch(_grouped_linear_kernel, (-(-rows // config.block_m), -(-width // config.block_n)))(
        x, numbers, scales, minima, out if bias is None else bias, out, rows, width, x.stride(0),
        DEPTH=depth, BITS=layout.bits, SCALED=layout.scaled, ZERO=layout.zero,
        HAS_MINIMA=layout.has_minima, HAS_BIAS=bias is not None, GROUP=GROUP,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_BYTES=config.block_bytes,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    return out


@jit
def _load_scales(rows, k, mask, SHARED: tl.constexpr):
    """Load `[columns, len(k)]` scales or minima, and repeat each for the SHARED numbers that follow it."""
    scales = tl.load(rows + k, mask=mask, other=0.0).to(tl.float32)
    columns: tl.constexpr = scales.shape[0]
    count: tl.constexpr = scales.shape[1]
    repeated = tl.broadcast_to(tl.expand_dims(scales, 2), [columns, count, SHARED])
    return tl.reshape(repeated, [columns, count * SHARED])


@partial(jit, varying=("rows",))
def _grouped_linear_kernel(  # noqa: PLR0917  a kernel's arguments are positional
    x, numbers, scales, minima, bias, out, rows, width, x_stride,
    DEPTH: tl.constexpr, BITS: tl.constexpr, SCALED: tl.constexpr, ZERO: tl.constexpr,
    HAS_MINIMA: tl.constexpr, HAS_BIAS: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_BYTES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)  # fastest: programs side by side share a weight's columns
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row, is_column = (row < rows)[:, None], (column < width)[:, None]
    x_rows = x + row.to(tl.int64)[:, None] * x_stride
    PARTS: tl.constexpr = 8 // BITS
    HALF: tl.constexpr = GROUP // 2
    ROW_BYTES: tl.constexpr = DEPTH // PARTS
    ROW_SCALES: tl.constexpr = DEPTH // SCALED
    # Numbers of one half of the bytes that share a scale, side by side: at least 16, at most all of a block.
    RUN: tl.constexpr = SCALED if PARTS == 1 or SCALED <= HALF else SCALED // 2
    SHARED: tl.constexpr = BLOCK_BYTES if ROW_SCALES == 1 or RUN > BLOCK_BYTES else RUN
    number_rows = numbers + column.to(tl.int64)[:, None] * ROW_BYTES
    scale_rows = column.to(tl.int64)[:, None] * ROW_SCALES
    runs = tl.arange(0, BLOCK_BYTES // SHARED) * SHARED
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, ROW_BYTES, BLOCK_BYTES):
        at = start + tl.arange(0, BLOCK_BYTES)
        is_byte = (at < ROW_BYTES)[None, :]
        stored = tl.load(number_rows + at[None, :], mask=is_column & is_byte, other=0).to(tl.int32)
        for part in tl.static_range(PARTS):
            if PARTS == 2:
                k = at // HALF * GROUP + at % HALF + part * HALF
                first = (start + runs) // HALF * GROUP + part * HALF
                number = stored >> part * BITS & 15
            else:
                k = at
                first = start + runs
                number = stored
            at_scale = (first // SCALED)[None, :]
            has_scale = is_column & (first < DEPTH)[None, :]
            weight = _load_scales(scales + scale_rows, at_scale, has_scale, SHARED) * (number - ZERO).to(tl.float32)
            if HAS_MINIMA:
                weight += _load_scales(minima + scale_rows, at_scale, has_scale, SHARED)
            values = tl.load(x_rows + k[None, :], mask=is_row & is_byte, other=0.0)
            acc += tl.dot(values, tl.trans(weight.to(values.dtype)), input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    place = out + row.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(place, acc.to(out.dtype.element_ty), mask=is_row & (column < width)[None, :])
