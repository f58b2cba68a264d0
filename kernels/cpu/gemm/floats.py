"""One panel of fp32 by multiply-adds. A row's sums are one chain over k (sums.py), so all CPUs with FMA have its bits.

A deep panel processes all rows block by block of k, so that each block stays in the second-level cache; between two
blocks the sums are kept in the result, in fp32, and so equal those kept in registers.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.gemm.panels import PANEL_COLUMNS
from kernels.cpu.gemm.sums import MOST_VECTORS, Sums, is_wide, lanes, rows_at_once, write_for_rows
from kernels.cpu.runtime import vectors as v
from kernels.cpu.runtime.memory import float32_at, jit

_BLOCK_DEPTH = 1024

# Distance in k at which the weight is prefetched, for many rows and for few. Many rows take long enough per k to hide
# the memory latency; for 2 to 5 rows a distance above 8 interferes with the CPU's own prefetching. With AVX2
# prefetching costs more than it saves (README.md).
_FAR, _NEAR, _FEW_ROWS = 64, 8, 5
_LINE = 16  # floats of a cache line


@jit
def multiply_panel(matrix: Any, rows: int, panel: Any, depth: int, columns: int) -> None:
    """Multiply any number of rows with one panel, of which the first `columns` columns are stored.

    `matrix` is (x, x_stride, out, out_stride, out_bytes) and `panel` (weight, bias): addresses, strides in elements.
    """
    x, x_stride, out, out_stride, _ = matrix
    step = rows_at_once()
    for start in range(0, depth, _BLOCK_DEPTH):
        count = min(depth - start, _BLOCK_DEPTH)
        weight = float32_at(panel[0] + 4 * PANEL_COLUMNS * start)
        for row in range(0, rows, step):
            target = out + 4 * row * out_stride
            before = (panel[1], 0) if start == 0 else (target, out_stride)
            _multiply_rows(
                min(rows - row, step), float32_at(x + 4 * (row * x_stride + start)), x_stride, weight,
                float32_at(before[0]), before[1], float32_at(target), out_stride, count, columns,
            )  # fmt: skip


@intrinsic
def _multiply_rows(  # noqa: PLR0917  compiled
    typing_context: Any, rows: Any, x: Any, x_stride: Any, weight: Any, before: Any, before_stride: Any, out: Any,
    out_stride: Any, depth: Any, columns: Any,
) -> Any:  # fmt: skip
    """Add the products of 1 to `rows_at_once()` rows with a panel to the sums `before`. Strides count elements."""
    single, word = types.CPointer(types.float32), types.int64
    signature = types.void(word, single, word, single, single, word, single, word, word, word)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, *others = arguments

        def write(count: int, first: int) -> None:
            width = builder.sub(others[-1], v.I64(first))
            for vectors in range(1, MOST_VECTORS + 1):
                with _where_needed(builder, width, vectors):
                    _RowsCode(builder, others, Sums(builder, count, first, vectors)).write()

        write_for_rows(builder, rows, write)
        return context.get_dummy_value()

    return signature, generate


def _where_needed(builder: Any, width: Any, vectors: int) -> AbstractContextManager[None]:
    """Run a block only if exactly this many vectors hold a panel's `width` columns."""
    is_enough = builder.icmp_signed("<=", width, v.I64(vectors * lanes()))
    is_needed = builder.icmp_signed(">", width, v.I64((vectors - 1) * lanes()))
    needed: AbstractContextManager[None] = builder.if_then(
        is_needed if vectors == MOST_VECTORS else builder.and_(is_enough, is_needed)
    )
    return needed


class _RowsCode:
    """Generate the code that multiplies a fixed number of rows with a few vectors of columns."""

    def __init__(self, builder: Any, arguments: Any, sums: Sums) -> None:
        self._builder, self._sums = builder, sums
        x, x_stride, self._weight, before, before_stride, out, out_stride, self._depth, self._columns = arguments
        self._x, self._before, self._out = (
            [builder.gep(start, [builder.mul(stride, v.I64(row))]) for row in range(sums.rows)]
            for start, stride in ((x, x_stride), (before, before_stride), (out, out_stride))
        )

    def write(self) -> None:
        """Loop over all of k, and store the sums."""
        builder = self._builder
        self._sums.start(lambda row, column: self._load(self._before[row], column, self._width_at(column)))
        with cgutils.for_range(builder, self._depth) as loop:
            at = builder.mul(loop.index, v.I64(PANEL_COLUMNS))
            weights = [self._load(builder.gep(self._weight, [at]), column) for column in self._sums.columns]
            if is_wide():
                self._prefetch(at)
            self._sums.add(weights, lambda row: builder.load(builder.gep(self._x[row], [loop.index])))
        self._sums.store(lambda sums, row, column: self._store(sums, self._out[row], column))

    def _prefetch(self, at: Any) -> None:
        ahead = _NEAR if self._sums.rows <= _FEW_ROWS else _FAR
        for column in range(0, PANEL_COLUMNS, _LINE):
            v.prefetch(self._builder, self._weight, self._builder.add(at, v.I64(ahead * PANEL_COLUMNS + column)))

    def _width_at(self, column: int) -> Any:
        """Return how many columns there are from this one on, if that may be fewer than a vector has."""
        is_last = column == self._sums.columns[-1]
        return self._builder.sub(self._columns, v.I64(column)) if is_last else None

    def _load(self, start: Any, column: int, width: Any = None) -> Any:
        return v.load_vector(self._builder, start, v.I64(column), self._sums.floats, width)

    def _store(self, sums: Any, start: Any, column: int) -> None:
        v.store_floats(self._builder, sums, start, v.I64(column), self._width_at(column))
