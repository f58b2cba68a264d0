"""One panel by dot products of bf16 pairs (AVX512-BF16): up to 8 rows × 48 columns in 24 registers over all of k.

A row's sums are one chain over all pairs of k, whatever the number of rows. Like in the instruction, subnormal numbers
count as zero. Source: Intel 64 and IA-32 Architectures Software Developer's Manual, vol. 2, VDPBF16PS, VCVTNEPS2BF16.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.gemm.panels import PANEL_COLUMNS
from kernels.cpu.gemm.rounded import RowsOut
from kernels.cpu.runtime import vectors as v
from kernels.cpu.runtime.memory import bfloat16_at, float32_at, jit

MAX_ROWS = 8
_VECTORS = PANEL_COLUMNS // v.LANES


def is_there() -> bool:
    """Tell whether numba compiles for a CPU that has this unit."""
    return v.has_bfloat16_dot()


@jit
def multiply_panel(matrix: Any, rows: int, panel: Any, depth: int, columns: int) -> None:
    """Multiply any number of rows with one panel, of which the first `columns` columns are stored.

    `matrix` is (x, x_stride, out, out_stride, out_bytes) and `panel` (weight, bias): addresses, strides in elements.
    """
    x, x_stride, out, out_stride, out_bytes = matrix
    for row in range(0, rows, MAX_ROWS):
        _multiply_rows(
            min(rows - row, MAX_ROWS), bfloat16_at(x + 2 * row * x_stride), x_stride, bfloat16_at(panel[0]),
            float32_at(panel[1]), out + out_bytes * row * out_stride, out_stride, out_bytes, depth, columns,
        )  # fmt: skip


@intrinsic
def _multiply_rows(  # noqa: PLR0917  compiled
    typing_context: Any, rows: Any, x: Any, x_stride: Any, weight: Any, bias: Any, out: Any, out_stride: Any,
    out_bytes: Any, depth: Any, columns: Any,
) -> Any:  # fmt: skip
    """Multiply 1 to 8 rows with a panel of which the first `columns` columns are stored. Strides count elements."""
    half, single, word = types.CPointer(types.uint16), types.CPointer(types.float32), types.int64
    signature = types.void(word, half, word, half, single, word, word, word, word, word)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, x, x_stride, weight, bias, out, out_stride, out_bytes, depth, columns = arguments
        target = RowsOut(builder, out, out_stride, out_bytes, columns, rows=MAX_ROWS)
        done = builder.append_basic_block("done")
        choice = builder.switch(rows, done)
        for count in range(1, MAX_ROWS + 1):
            block = builder.append_basic_block(f"rows_{count}")
            choice.add_case(v.I64(count), block)
            with builder.goto_block(block):
                code = _RowsCode(builder, (x, x_stride, weight, bias, depth), count)
                code.multiply()
                code.store(target)
                builder.branch(done)
        builder.position_at_end(done)
        target.finish(v.I64(0), rows, v.LANES, v.round_to_bfloat16)
        return context.get_dummy_value()

    return signature, generate


class _RowsCode:
    """Generate the code that multiplies a fixed number of rows."""

    def __init__(self, builder: Any, arguments: Any, rows: int) -> None:
        self._builder = builder
        self._x, self._x_stride, self._weight, self._bias, self._depth = arguments
        self._totals = [[cgutils.alloca_once(builder, v.FLOATS) for _ in range(_VECTORS)] for _ in range(rows)]

    def multiply(self) -> None:
        builder = self._builder
        for vector in range(_VECTORS):
            bias = v.load_vector(builder, self._bias, v.I64(vector * v.LANES), v.FLOATS)
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

    def _add_pair(self, pair: Any, words: list[Any]) -> None:
        builder = self._builder
        start = builder.mul(pair, v.I64(2 * PANEL_COLUMNS))
        offsets = [builder.add(start, v.I64(2 * v.LANES * vector)) for vector in range(_VECTORS)]
        weights = [builder.load(self._words_at(offset), align=4) for offset in offsets]
        for row, word in zip(self._totals, words, strict=True):
            pair_of_x = v.spread(builder, word, v.WORDS)
            for total, weight in zip(row, weights, strict=True):
                builder.store(v.dot_pairs(builder, weight, pair_of_x, builder.load(total)), total)

    def store(self, target: RowsOut) -> None:
        builder = self._builder
        for index, row in enumerate(self._totals):
            for vector, total in enumerate(row):
                place = target.sums_at(v.I64(index), vector * v.LANES, v.FLOATS)
                builder.store(builder.load(total), place, align=4)

    def _words_at(self, index: Any) -> Any:
        return self._builder.bitcast(self._builder.gep(self._weight, [index]), v.WORDS.as_pointer())
