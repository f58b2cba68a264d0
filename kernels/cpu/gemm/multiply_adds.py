"""One panel of bf16 by multiply-adds in fp32: weights are widened in registers, x once for each block of k.

For every CPU with FMA, and the faster unit on CPUs whose bf16 dot products are slower than their multiply-adds. A row's
sums are one chain over k (sums.py), so their bits are the same on all these CPUs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.gemm.panels import PANEL_COLUMNS
from kernels.cpu.gemm.rounded import RowsOut, to_bfloat16
from kernels.cpu.gemm.sums import Sums, lanes, most_rows, rows_at_once, write_for_rows
from kernels.cpu.runtime import vectors as v
from kernels.cpu.runtime.memory import bfloat16_at, float32_at, jit

_BLOCK_DEPTH = 128  # k of x widened at a time: 4 KB for 8 rows, which stay in the first-level cache


@jit
def multiply_panel(matrix: Any, rows: int, panel: Any, depth: int, columns: int) -> None:
    """Multiply any number of rows with one panel, of which the first `columns` columns are stored.

    `matrix` is (x, x_stride, out, out_stride, out_bytes) and `panel` (weight, bias): addresses, strides in elements.
    """
    x, x_stride, out, out_stride, out_bytes = matrix
    step = rows_at_once()
    for row in range(0, rows, step):
        _multiply_rows(
            min(rows - row, step), bfloat16_at(x + 2 * row * x_stride), x_stride, bfloat16_at(panel[0]),
            float32_at(panel[1]), out + out_bytes * row * out_stride, out_stride, out_bytes, depth, columns,
        )  # fmt: skip


@intrinsic
def _multiply_rows(  # noqa: PLR0917  compiled
    typing_context: Any, rows: Any, x: Any, x_stride: Any, weight: Any, bias: Any, out: Any, out_stride: Any,
    out_bytes: Any, depth: Any, columns: Any,
) -> Any:  # fmt: skip
    """Multiply 1 to `rows_at_once()` rows with a panel. Strides count elements."""
    half, single, word = types.CPointer(types.uint16), types.CPointer(types.float32), types.int64
    signature = types.void(word, half, word, half, single, word, word, word, word, word)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, x, x_stride, weight, bias, out, out_stride, out_bytes, depth, columns = arguments
        target = RowsOut(builder, out, out_stride, out_bytes, columns, rows=most_rows())
        x_block = cgutils.alloca_once(builder, v.FLOATS, size=most_rows() * _BLOCK_DEPTH // v.LANES)
        x_block = builder.bitcast(x_block, v.FLOAT.as_pointer())

        def write(count: int, first: int) -> None:
            sums = Sums(builder, count, first)
            _RowsCode(builder, (x, x_stride, weight, bias, depth, x_block), sums).multiply(target)

        write_for_rows(builder, rows, write)
        target.finish(v.I64(0), rows, lanes(), to_bfloat16)
        return context.get_dummy_value()

    return signature, generate


class _RowsCode:
    """Generate the code that multiplies a fixed number of rows with three vectors of columns."""

    def __init__(self, builder: Any, arguments: Any, sums: Sums) -> None:
        self._builder, self._sums, self._floats = builder, sums, sums.floats
        self._x, self._x_stride, self._weight, self._bias, self._depth, self._x_block = arguments
        self._words = ir.VectorType(v.I32, lanes())

    def multiply(self, target: RowsOut) -> None:
        """Pass all sums to `target`."""
        builder, floats = self._builder, self._floats
        self._sums.start(lambda _, column: v.load_vector(builder, self._bias, v.I64(column), floats))
        with cgutils.for_range_slice(builder, v.I64(0), self._depth, v.I64(_BLOCK_DEPTH)) as (start, _):
            count = v.lower(builder, builder.sub(self._depth, start), v.I64(_BLOCK_DEPTH))
            self._widen_x(start, count)
            pairs = builder.lshr(builder.add(count, v.I64(1)), v.I64(1))
            first = builder.lshr(start, v.I64(1))
            with cgutils.for_range(builder, pairs) as loop:
                self._add_pair(builder.add(first, loop.index), builder.shl(loop.index, v.I64(1)))
        self._sums.store(
            lambda sums, row, column: builder.store(sums, target.sums_at(v.I64(row), column, floats), align=4)
        )

    def _widen_x(self, start: Any, count: Any) -> None:
        """Copy elements [start, start + count) of every row into the block, and a zero after an odd number of them."""
        builder, halves = self._builder, ir.VectorType(v.I16, lanes())
        whole = builder.and_(count, v.I64(-lanes()))
        with cgutils.for_range_slice(builder, v.I64(0), whole, v.I64(lanes())) as (index, _):
            for row in range(self._sums.rows):
                numbers = v.load_vector(builder, self._x_row(row), builder.add(start, index), halves)
                place = builder.bitcast(self._place(row, index), self._words.as_pointer())
                builder.store(self._widened(builder.zext(numbers, self._words)), place, align=4)
        with cgutils.for_range(builder, count, start=whole) as loop:
            for row in range(self._sums.rows):
                half = builder.load(builder.gep(self._x_row(row), [builder.add(start, loop.index)]))
                self._store_word(builder.shl(builder.zext(half, v.I32), v.I32(16)), row, loop.index)
        with builder.if_then(builder.trunc(count, v.BIT)):
            for row in range(self._sums.rows):
                self._store_word(v.I32(0), row, count)

    def _add_pair(self, pair: Any, index: Any) -> None:
        """Add the products of a pair of k: the weight's, and the one from `index` on in the block of x."""
        builder = self._builder
        start = builder.mul(pair, v.I64(2 * PANEL_COLUMNS))
        words = [
            v.load_vector(builder, self._weight, builder.add(start, v.I64(2 * column)), self._words)
            for column in self._sums.columns
        ]
        for half in (0, 1):
            weights = [builder.bitcast(self._half(word, half), self._floats) for word in words]
            self._sums.add(weights, partial(self._x_at, builder.add(index, v.I64(half))))

    def _half(self, words: Any, half: int) -> Any:
        if half == 0:
            return self._widened(words)
        return self._builder.and_(words, ir.Constant(self._words, [0xFFFF0000] * lanes()))

    def _widened(self, words: Any) -> Any:
        return self._builder.shl(words, ir.Constant(self._words, [16] * lanes()))

    def _x_row(self, row: int) -> Any:
        return self._builder.gep(self._x, [self._builder.mul(self._x_stride, v.I64(row))])

    def _place(self, row: int, index: Any) -> Any:
        return self._builder.gep(self._x_block, [self._builder.add(v.I64(row * _BLOCK_DEPTH), index)])

    def _x_at(self, index: Any, row: int) -> Any:
        return self._builder.load(self._place(row, index))

    def _store_word(self, word: Any, row: int, index: Any) -> None:
        self._builder.store(word, self._builder.bitcast(self._place(row, index), v.I32.as_pointer()))
