"""One panel of whole numbers times rows of whole numbers: exact sums of a group, which two scales make floats.

    y = bias + Σ_groups scale_w · (scale_x · Σ (number_w − zero) · number_x) + minimum_w · (scale_x · Σ number_x)

A row's sums are one chain over the groups, so their bits are the same on all CPUs and in every batch.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.gemm.panels import PANEL_COLUMNS
from kernels.cpu.gemm.rounded import RowsOut, to_bfloat16
from kernels.cpu.gemm.sums import MOST_VECTORS, is_wide, lanes
from kernels.cpu.grouped.activations import FACTORS_BYTES, SCALE, START, SUM
from kernels.cpu.grouped.byte_dots import dot
from kernels.cpu.grouped.widen import fused, group_bytes, load_floats
from kernels.cpu.runtime import vectors as v
from kernels.cpu.runtime.memory import float32_at, jit
from kernels.grouped_weight import GROUP

_WORD_BYTES = 4 * PANEL_COLUMNS


def most_rows() -> int:
    """Return the number of rows that are summed at a time: two registers for each vector of sums."""
    return 4 if is_wide() else 1


@intrinsic
def _rows_at_once(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return v.I64(most_rows())

    return types.int64(), generate


def _multiplier(bits: int) -> Any:
    """Return a compiled function that multiplies rounded rows with a panel of this many bits a number."""

    @intrinsic
    def multiply_rows(  # noqa: PLR0917  compiled
        typing_context: Any, rows: Any, x: Any, panel: Any, bias: Any, target: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            rows, x, panel, bias, target = arguments
            out, out_stride, out_bytes, columns = (builder.extract_value(target, index) for index in range(4))
            rows_out = RowsOut(builder, out, out_stride, out_bytes, columns, rows=most_rows())
            done = builder.append_basic_block("done")
            choice = builder.switch(rows, done)
            for count in range(1, most_rows() + 1):
                block = builder.append_basic_block(f"rows_{count}")
                choice.add_case(v.I64(count), block)
                with builder.goto_block(block):
                    for first in range(0, PANEL_COLUMNS, MOST_VECTORS * lanes()):
                        _RowsCode(builder, (x, panel, bias), bits=bits, rows=count, first=first).write(rows_out)
                    builder.branch(done)
            builder.position_at_end(done)
            rows_out.finish(v.I64(0), rows, lanes(), to_bfloat16)
            return context.get_dummy_value()

        return types.void(types.int64, x, panel, types.CPointer(types.float32), target), generate

    @jit
    def multiply_panel(matrix: Any, rows: int, panel: Any, bias: int, columns: int) -> None:
        """Multiply any number of rounded rows with one panel, of which the first `columns` columns are stored.

        `matrix` is (x, x_bytes of a row, out, out_stride, out_bytes); `panel` is (address, groups, num_scales,
        scale_shift, scale_bytes, has_minima), where a group has one scale.
        """
        x, x_bytes, out, out_stride, out_bytes = matrix
        step = _rows_at_once()
        for row in range(0, rows, step):
            target = out + out_bytes * row * out_stride, out_stride, out_bytes, columns
            multiply_rows(min(rows - row, step), (x + row * x_bytes, x_bytes), panel, float32_at(bias), target)

    return multiply_panel


class _RowsCode:
    """Generate the code that multiplies a fixed number of rows with three vectors of columns."""

    def __init__(self, builder: Any, arguments: Any, *, bits: int, rows: int, first: int) -> None:
        self._builder, self._bits, self._num_rows = builder, bits, rows
        (x, panel, self._bias) = arguments
        start, x_bytes = (builder.extract_value(x, index) for index in range(2))
        self._rows = [builder.add(start, builder.mul(x_bytes, v.I64(row))) for row in range(rows)]
        self._panel, self._groups, self._num_scales, self._scale_shift, self._scale_bytes, self._has_minima = (
            builder.extract_value(panel, index) for index in range(6)
        )
        self._columns = [first + vector * lanes() for vector in range(MOST_VECTORS)]
        self._words, self._floats = (ir.VectorType(kind, lanes()) for kind in (v.I32, v.FLOAT))
        self._totals = [[cgutils.alloca_once(builder, self._floats) for _ in self._columns] for _ in range(rows)]

    def write(self, target: RowsOut) -> None:
        """Loop over all groups, and pass the sums to `target`."""
        builder = self._builder
        for totals in self._totals:
            for column, total in zip(self._columns, totals, strict=True):
                builder.store(v.load_vector(builder, self._bias, v.I64(column), self._floats), total)
        scales = builder.add(self._panel, builder.mul(self._groups, v.I64(group_bytes(self._bits))))
        scales_bytes = builder.mul(self._scale_bytes, v.I64(PANEL_COLUMNS))
        with cgutils.for_range(builder, self._groups) as loop:
            numbers = builder.add(self._panel, builder.mul(loop.index, v.I64(group_bytes(self._bits))))
            factors = [self._factors(row, loop.index) for row in self._rows]
            x = [builder.add(row, builder.mul(loop.index, v.I64(GROUP))) for row in self._rows]
            sums = self._group_sums(numbers, x, factors)
            scale = builder.lshr(builder.shl(loop.index, v.I64(1)), self._scale_shift)
            at = builder.add(scales, builder.mul(scale, scales_bytes))
            self._add_sums(sums, at, factors)
            with builder.if_then(builder.icmp_signed("!=", self._has_minima, v.I64(0))):
                self._add_minima(builder.add(at, builder.mul(self._num_scales, scales_bytes)), factors)
        for row, totals in enumerate(self._totals):
            for column, total in zip(self._columns, totals, strict=True):
                builder.store(builder.load(total), target.sums_at(v.I64(row), column, self._floats), align=4)

    def _factors(self, row: Any, group: Any) -> Any:
        """Return the address of a row's factors of a group; they follow the row's numbers."""
        builder = self._builder
        numbers = builder.mul(self._groups, v.I64(GROUP))
        return builder.add(row, builder.add(numbers, builder.mul(group, v.I64(FACTORS_BYTES))))

    def _group_sums(self, numbers: Any, x: list[Any], factors: list[Any]) -> list[list[Any]]:
        """Return each row's sums of products of a group, less those of `zero`, int32."""
        builder = self._builder
        sums = [[self._spread(at, START, v.I32)] * len(self._columns) for at in factors]
        for word in range(group_bytes(self._bits) // _WORD_BYTES):
            for index, column in enumerate(self._columns):
                stored = self._load(numbers, word * _WORD_BYTES + 4 * column)
                for half, vector in enumerate(self._halves(stored)):
                    at = 4 * word + half * GROUP // 2
                    for row, start in enumerate(x):
                        sums[row][index] = dot(
                            builder, sums[row][index], vector, self._spread(start, at, v.I32), bits=self._bits
                        )
        return sums

    def _halves(self, stored: Any) -> list[Any]:
        if self._bits == 8:
            return [stored]
        builder = self._builder
        low, four = (ir.Constant(self._words, [number] * lanes()) for number in (0x0F0F0F0F, 4))
        return [builder.and_(stored, low), builder.and_(builder.lshr(stored, four), low)]

    def _add_sums(self, sums: list[list[Any]], scales: Any, factors: list[Any]) -> None:
        builder = self._builder
        for index, column in enumerate(self._columns):
            scale = load_floats(builder, scales, self._scale_bytes, column)
            for row, at in enumerate(factors):
                whole = builder.sitofp(sums[row][index], self._floats)
                scaled = builder.fmul(whole, self._spread(at, SCALE, v.FLOAT))
                self._add(row, index, scaled, scale)

    def _add_minima(self, minima: Any, factors: list[Any]) -> None:
        for index, column in enumerate(self._columns):
            minimum = load_floats(self._builder, minima, self._scale_bytes, column)
            for row, at in enumerate(factors):
                self._add(row, index, self._spread(at, SUM, v.FLOAT), minimum)

    def _add(self, row: int, index: int, a: Any, b: Any) -> None:
        total = self._totals[row][index]
        self._builder.store(fused(self._builder, a, b, self._builder.load(total)), total)

    def _load(self, address: Any, offset: int) -> Any:
        builder = self._builder
        place = builder.inttoptr(builder.add(address, v.I64(offset)), self._words.as_pointer())
        return builder.load(place, align=4)

    def _spread(self, address: Any, offset: int, kind: Any) -> Any:
        """Return a vector of the number of this kind that lies `offset` bytes from an address."""
        builder = self._builder
        place = builder.inttoptr(builder.add(address, v.I64(offset)), kind.as_pointer())
        return v.spread(builder, builder.load(place, align=4), ir.VectorType(kind, lanes()))


multiply_panel = {bits: _multiplier(bits) for bits in (4, 8)}
"""`multiply_panel[bits]`, in compiled code."""
