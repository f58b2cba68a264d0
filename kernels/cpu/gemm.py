"""Matrix products in bf16 on CPUs with AVX512-BF16: rows of x times one packed panel of columns after the other.

    y[r, n] = bf16(bias[n] + Σ_k x[r, k] · W[n, k])        products of bf16 pairs, sums in fp32, one chain over all k

The weight lies as [panel][k / 2][48 columns][2], so that a 64-byte line holds one pair of k for 16 columns: what one
`vdpbf16ps` takes. Up to 8 rows × 48 columns stay in 24 registers for the whole of k, and a panel is read from memory
once for all rows. Every row sums in the same order, whatever the number of rows, so that a row's result never depends
on its batch. Like the instruction, subnormal numbers count as zero. With AMX, tiles.py multiplies the same panels.
Source: Intel 64 and IA-32 Architectures Software Developer's Manual, vol. 2, VDPBF16PS and VCVTNEPS2BF16. README.md has
the timings. Knows no layer.
"""

from __future__ import annotations

import functools
from typing import Any

import numba
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor
from torch.nn import functional

from kernels.cpu import tiles
from kernels.cpu.runtime import amx, huge_pages
from kernels.cpu.runtime import vectors as v
from kernels.cpu.runtime.block import FAULT, NUM_TASKS, Block
from kernels.cpu.runtime.launch import CpuKernel, keep
from kernels.cpu.runtime.memory import bfloat16_at, fetch_add, float32_at, int64_at, jit
from kernels.errors import require

PANEL_COLUMNS = tiles.PANEL_COLUMNS
_VECTORS = PANEL_COLUMNS // v.LANES
_MAX_ROWS = 8
_PARALLEL_FROM = 65_536  # weight elements (× rows / 8 if more); below, starting the second thread costs more
_MIN_RUN = 32  # rows of a task, where rows are cut at all


_ROUNDED = ir.VectorType(v.BFloat(), v.LANES)


@intrinsic
def _multiply_rows(  # noqa: PLR0917  compiled
    typing_context: Any, rows: Any, x: Any, x_stride: Any, weight: Any, bias: Any, out: Any, out_stride: Any,
    depth: Any, columns: Any,
) -> Any:  # fmt: skip
    """Multiply 1 to 8 rows with a panel of which the first `columns` columns are stored. Strides count elements."""
    half, single, word = types.CPointer(types.uint16), types.CPointer(types.float32), types.int64
    signature = types.void(word, half, word, half, single, half, word, word, word)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        done = builder.append_basic_block("done")
        choice = builder.switch(arguments[0], done)
        for count in range(1, _MAX_ROWS + 1):
            block = builder.append_basic_block(f"rows_{count}")
            choice.add_case(v.I64(count), block)
            with builder.goto_block(block):
                _RowsCode(builder, arguments[1:], count).write()
                builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return signature, generate


class _RowsCode:
    """Write the code that multiplies a fixed number of rows."""

    def __init__(self, builder: Any, arguments: Any, rows: int) -> None:
        self._builder = builder
        self._x, self._x_stride, self._weight, self._bias, self._out, self._out_stride, self._depth, self._columns = (
            arguments
        )
        self._totals = [[cgutils.alloca_once(builder, v.FLOATS) for _ in range(_VECTORS)] for _ in range(rows)]

    def write(self) -> None:
        builder = self._builder
        for vector in range(_VECTORS):
            bias = builder.load(self._vector_at(self._bias, v.I64(vector * v.LANES), v.FLOATS), align=4)
            for row in self._totals:
                builder.store(bias, row[vector])
        starts = [builder.gep(self._x, [builder.mul(self._x_stride, v.I64(row))]) for row in range(len(self._totals))]
        pairs = builder.lshr(self._depth, v.I64(1))
        with cgutils.for_range(builder, pairs) as loop:
            at = builder.shl(loop.index, v.I64(1))
            words = [builder.bitcast(builder.gep(start, [at]), v.I32.as_pointer()) for start in starts]
            self._add_pair(loop.index, [builder.load(word, align=2) for word in words])
        with builder.if_then(builder.trunc(self._depth, ir.IntType(1))):  # odd: the last pair's second number is 0
            at = builder.shl(pairs, v.I64(1))
            halves = [builder.load(builder.gep(start, [at]), align=2) for start in starts]
            self._add_pair(pairs, [builder.zext(half, v.I32) for half in halves])
        self._store_rounded()

    def _add_pair(self, pair: Any, words: list[Any]) -> None:
        builder = self._builder
        start = builder.mul(pair, v.I64(2 * PANEL_COLUMNS))
        offsets = [builder.add(start, v.I64(2 * v.LANES * vector)) for vector in range(_VECTORS)]
        weights = [builder.load(self._vector_at(self._weight, offset, v.WORDS), align=4) for offset in offsets]
        for row, word in zip(self._totals, words, strict=True):
            pair_of_x = v.spread(builder, word, v.WORDS)
            for total, weight in zip(row, weights, strict=True):
                builder.store(v.dot_pairs(builder, weight, pair_of_x, builder.load(total)), total)

    def _store_rounded(self) -> None:
        builder = self._builder
        name = "llvm.x86.avx512bf16.cvtneps2bf16.512"
        rounded = builder.module.declare_intrinsic(name, (), ir.FunctionType(_ROUNDED, [v.FLOATS]))
        is_whole = builder.icmp_signed("==", self._columns, v.I64(PANEL_COLUMNS))
        spare = builder.bitcast(cgutils.alloca_once(builder, ir.ArrayType(v.I16, PANEL_COLUMNS)), v.I16.as_pointer())
        for index, row in enumerate(self._totals):
            out = builder.gep(self._out, [builder.mul(self._out_stride, v.I64(index))])
            target = builder.select(is_whole, out, spare)
            for vector, total in enumerate(row):
                halves = builder.bitcast(builder.call(rounded, [builder.load(total)]), v.HALVES)
                builder.store(halves, self._vector_at(target, v.I64(vector * v.LANES), v.HALVES), align=2)
            with builder.if_then(builder.not_(is_whole)), cgutils.for_range(builder, self._columns) as loop:
                builder.store(builder.load(builder.gep(spare, [loop.index])), builder.gep(out, [loop.index]))

    def _vector_at(self, pointer: Any, index: Any, vector: Any) -> Any:
        return self._builder.bitcast(self._builder.gep(pointer, [index]), vector.as_pointer())


@jit
def multiply_panel(matrix: Any, rows: int, panel: Any, depth: int, columns: int) -> None:
    """Multiply any number of rows with one panel.

    `matrix` is (x, x_stride, out, out_stride) and `panel` (weight, bias): addresses, strides in elements.
    """
    x, x_stride, out, out_stride = matrix
    for row in range(0, rows, _MAX_ROWS):
        _multiply_rows(
            min(rows - row, _MAX_ROWS), bfloat16_at(x + 2 * row * x_stride), x_stride, bfloat16_at(panel[0]),
            float32_at(panel[1]), bfloat16_at(out + 2 * row * out_stride), out_stride, depth, columns,
        )  # fmt: skip


@jit
def multiply_panel_by_tiles(matrix: Any, rows: int, panel: Any, depth: int, columns: int) -> None:
    """Do what `multiply_panel` does by AMX."""
    x, x_stride, out, out_stride = matrix
    tiles.multiply_panel(
        rows, bfloat16_at(x), x_stride, bfloat16_at(panel[0]), float32_at(panel[1]), bfloat16_at(out), out_stride,
        depth, columns,
    )  # fmt: skip


_LINEAR_BLOCK = Block("x* weight* bias* out* rows x_stride depth width run")
_LINEAR_AT = _LINEAR_BLOCK.at


@jit
def _task_of(p: Any, task: int) -> Any:
    """Return what to multiply: the matrix, its rows and the panel, as `multiply_panel` takes them, and its columns."""
    x, weight, bias, out = p[_LINEAR_AT.x], p[_LINEAR_AT.weight], p[_LINEAR_AT.bias], p[_LINEAR_AT.out]
    rows, run, x_stride = p[_LINEAR_AT.rows], p[_LINEAR_AT.run], p[_LINEAR_AT.x_stride]
    depth, width = p[_LINEAR_AT.depth], p[_LINEAR_AT.width]
    runs = (rows + run - 1) // run
    panel, first = task // runs, task % runs * run
    column = panel * PANEL_COLUMNS
    matrix = x + 2 * first * x_stride, x_stride, out + 2 * (first * width + column), width
    place = weight + panel * 2 * PANEL_COLUMNS * (depth + depth % 2), bias + 4 * column
    return matrix, min(run, rows - first), place, min(PANEL_COLUMNS, width - column)


def _linear(p: Any) -> None:
    """Take tasks of one panel and one run of rows; the runs of a panel follow each other."""
    while True:
        task = fetch_add(p, 1)
        if task >= p[NUM_TASKS]:
            break
        matrix, rows, panel, columns = _task_of(p, task)
        multiply_panel(matrix, rows, panel, p[_LINEAR_AT.depth], columns)


def _linear_by_tiles(p: Any) -> None:
    """Do the same by AMX."""
    while True:
        task = fetch_add(p, 1)
        if task >= p[NUM_TASKS]:
            break
        matrix, rows, panel, columns = _task_of(p, task)
        multiply_panel_by_tiles(matrix, rows, panel, p[_LINEAR_AT.depth], columns)


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


_LINEAR = CpuKernel(_linear, _LINEAR_BLOCK)
_LINEAR_BY_TILES = CpuKernel(_linear_by_tiles, _LINEAR_BLOCK)
_GATHER_ROWS = CpuKernel(_gather_rows, _GATHER_BLOCK)


@functools.cache
def can_multiply() -> bool:
    """Say whether these products run here and agree with `F.linear`; tried once per process."""
    try:
        if not v.has_bfloat16_dot():
            return False
        x, weight = torch.linspace(-1, 1, 9 * 33).view(9, 33).bfloat16(), torch.linspace(-1, 1, 50 * 33).view(50, 33)
        product = linear(x, pack(weight.bfloat16()), torch.zeros(2 * PANEL_COLUMNS), 50)
    except (AttributeError, RuntimeError, numba.core.errors.NumbaError):  # another numba, or an LLVM without bfloat
        return False
    return torch.allclose(
        product.float(), functional.linear(x.float(), weight.bfloat16().float()), rtol=0.01, atol=0.01
    )


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


def linear(x: Tensor, packed: Tensor, bias: Tensor, width: int) -> Tensor:
    """Multiply bf16 x `[rows, in]` with what `pack` and `pack_bias` returned to a new `[rows, width]`."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    rows, depth = x.shape
    out = keep(torch.empty((rows, width), dtype=torch.bfloat16))
    run = _rows_per_task(rows, packed.shape[0])
    kernel = _LINEAR_BY_TILES if amx.can_use() else _LINEAR
    kernel(
        packed.shape[0] * -(-rows // run),
        (x.data_ptr(), packed.data_ptr(), bias.data_ptr(), out.data_ptr(), rows, x.stride(0), depth, width, run),
        parallel=width * depth * max(rows, _MAX_ROWS) >= _PARALLEL_FROM * _MAX_ROWS,
    )
    return out


def _rows_per_task(rows: int, panels: int) -> int:
    """Keep a panel's rows together, so that it is read once, unless that leaves a thread fewer than four tasks."""
    wanted = -(-4 * torch.get_num_threads() // max(panels, 1))
    run = max(-(-rows // wanted), min(rows, _MIN_RUN), 1)
    return -(-run // _MAX_ROWS) * _MAX_ROWS


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
