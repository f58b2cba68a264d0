"""Where a panel's sums go: bf16 rows of the result, of which the last panel's may be narrower than the panel.

Knows no unit.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils

from kernels.cpu.gemm.panels import PANEL_COLUMNS
from kernels.cpu.runtime import vectors as v

_ROUNDED_UP, _QUIET_NAN, _INFINITY = 0x7FFF, 0x7FC0, 0x7F800000


class RowsOut:
    """Write code that stores whole vectors of up to `rows` rows, and of a narrow panel only what belongs there."""

    def __init__(self, builder: Any, out: Any, out_stride: Any, columns: Any, *, rows: int) -> None:
        self._builder, self._out, self._out_stride, self._columns = builder, out, out_stride, columns
        self._is_whole = builder.icmp_signed("==", columns, v.I64(PANEL_COLUMNS))
        self._spare = cgutils.alloca_once(builder, v.I16, size=rows * PANEL_COLUMNS)

    def vector_at(self, row: Any, column: int, vector: Any) -> Any:
        """Return where a vector of halves of a row (int64) begins."""
        builder = self._builder
        start = builder.select(self._is_whole, self._of_result(row), self._of_spare(row))
        return builder.bitcast(builder.gep(start, [v.I64(column)]), vector.as_pointer())

    def finish(self, rows: Any) -> None:
        """Copy what belongs to a narrow panel, for so many rows (int64)."""
        builder = self._builder
        with builder.if_then(builder.not_(self._is_whole)), cgutils.for_range(builder, rows) as row:
            source, target = self._of_spare(row.index), self._of_result(row.index)
            with cgutils.for_range(builder, self._columns) as loop:
                builder.store(builder.load(builder.gep(source, [loop.index])), builder.gep(target, [loop.index]))

    def _of_result(self, row: Any) -> Any:
        return self._builder.gep(self._out, [self._builder.mul(self._out_stride, row)])

    def _of_spare(self, row: Any) -> Any:
        return self._builder.gep(self._spare, [self._builder.mul(v.I64(PANEL_COLUMNS), row)])


def to_bfloat16(builder: Any, floats: Any, lanes: int) -> Any:
    """Round floats to the bits of bf16, to nearest even, on any CPU; subnormal numbers and NaN stay what they are."""
    words, halves = ir.VectorType(v.I32, lanes), ir.VectorType(v.I16, lanes)

    def every(number: int) -> Any:
        return ir.Constant(words, [number] * lanes)

    bits = builder.bitcast(floats, words)
    is_odd = builder.and_(builder.lshr(bits, every(16)), every(1))
    rounded = builder.lshr(builder.add(builder.add(bits, every(_ROUNDED_UP)), is_odd), every(16))
    is_nan = builder.icmp_unsigned(">", builder.and_(bits, every(0x7FFFFFFF)), every(_INFINITY))
    return builder.trunc(builder.select(is_nan, every(_QUIET_NAN), rounded), halves)
