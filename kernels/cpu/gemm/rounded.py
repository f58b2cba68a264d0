"""The output of a panel's sums: rows of the result, rounded to bf16 or in fp32; the last panel's may be narrower."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils

from kernels.cpu.gemm.panels import PANEL_COLUMNS
from kernels.cpu.runtime import vectors as v
from kernels.cpu.runtime.amx import room

_ROUNDED_UP, _QUIET_NAN, _INFINITY = 0x7FFF, 0x7FC00000, 0x7F800000


SUMS_BYTES = 4 * PANEL_COLUMNS
"""Size of a row of a panel in fp32."""

Rounding = Callable[[Any, Any], Any]
"""Generates the code that converts a vector of floats to halves."""


class RowsOut:
    """Generate code that takes a panel's sums in fp32, a few rows at a time, and stores them in the result's dtype.

    `out` is the address of the first row's first column there, `out_bytes` the size of a number: 2 for bf16 or 4 for
    fp32, and `out_stride` counts numbers.
    """

    def __init__(self, builder: Any, out: Any, out_stride: Any, out_bytes: Any, columns: Any, *, rows: int) -> None:
        self._builder, self._out, self._out_bytes = builder, builder.inttoptr(out, v.BYTE.as_pointer()), out_bytes
        self._row_bytes = builder.mul(out_stride, out_bytes)
        self._width_bytes = builder.mul(columns, out_bytes)
        self._is_whole = builder.icmp_signed("==", columns, v.I64(PANEL_COLUMNS))
        self.sums = room(builder, rows * SUMS_BYTES)
        self._line = room(builder, SUMS_BYTES)

    def sums_at(self, row: Any, column: int, vector: Any) -> Any:
        """Return the address for a vector of floats of a row (int64)."""
        at = self._builder.add(self._builder.mul(row, v.I64(SUMS_BYTES)), v.I64(4 * column))
        return self._builder.bitcast(self._builder.gep(self.sums, [at]), vector.as_pointer())

    def finish(self, first: Any, rows: Any, lanes: int, rounding: Rounding) -> None:
        """Store this many rows (int64), from row `first` of the result on."""
        builder = self._builder
        with cgutils.for_range(builder, rows) as loop:
            target = builder.gep(self._out, [builder.mul(builder.add(first, loop.index), self._row_bytes)])
            place = builder.select(self._is_whole, target, self._line)
            with builder.if_else(builder.icmp_signed("==", self._out_bytes, v.I64(2))) as (halves, floats):
                with halves:
                    self._store_row(loop.index, place, lanes, rounding)
                with floats:
                    self._store_row(loop.index, place, lanes, lambda _, sums: sums)
            with builder.if_then(builder.not_(self._is_whole), likely=False):
                cgutils.raw_memcpy(builder, target, self._line, self._width_bytes, v.I64(1), align=1)

    def _store_row(self, row: Any, place: Any, lanes: int, convert: Rounding) -> None:
        builder, floats = self._builder, ir.VectorType(v.FLOAT, lanes)
        for column in range(0, PANEL_COLUMNS, lanes):
            numbers = convert(builder, builder.load(self.sums_at(row, column, floats), align=4))
            size = 4 if numbers.type == floats else 2
            target = builder.bitcast(builder.gep(place, [v.I64(size * column)]), numbers.type.as_pointer())
            builder.store(numbers, target, align=size)


def to_bfloat16(builder: Any, floats: Any) -> Any:
    """Round floats to the bits of bf16, to nearest even, on any CPU; subnormal numbers and NaN are kept."""
    words = rounded_words(builder, floats)
    halves = ir.VectorType(v.I16, floats.type.count)
    return builder.trunc(builder.lshr(words, ir.Constant(words.type, [16] * floats.type.count)), halves)


def rounded_words(builder: Any, floats: Any) -> Any:
    """Round floats like `to_bfloat16`, and return words whose upper halves are the bits of bf16."""
    lanes = floats.type.count
    words = ir.VectorType(v.I32, lanes)

    def every(number: int) -> Any:
        return ir.Constant(words, [number] * lanes)

    bits = builder.bitcast(floats, words)
    is_odd = builder.and_(builder.lshr(bits, every(16)), every(1))
    rounded = builder.add(builder.add(bits, every(_ROUNDED_UP)), is_odd)
    is_nan = builder.icmp_unsigned(">", builder.and_(bits, every(0x7FFFFFFF)), every(_INFINITY))
    return builder.select(is_nan, every(_QUIET_NAN), rounded)
