"""Sums over a row in 64 partial sums, whatever the CPU's vectors: of its numbers, or of squares. For compiled CPU code.

A loop of numba's would add one number after the other, or as many at a time as the CPU has lanes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.runtime import vectors as v

_VECTORS = 4
"""Partial sums are this many vectors, so that a sum does not wait for the one before it."""

_Add = Callable[[Any, Any, Any], Any]
"""Returns a vector of numbers added to a vector of sums; the last of a row has a mask of its lanes."""


@intrinsic
def sum_of(typing_context: Any, x: Any, start: Any, dim: Any) -> Any:
    """Return the sum of x[start] to x[start + dim - 1]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def add(numbers: Any, total: Any, mask: Any) -> Any:
            del mask  # other lanes are loaded as 0
            return builder.fadd(total, numbers)

        return _RowSum(builder, arguments[0], arguments[1], x.dtype == types.uint16, add).emit(arguments[2])

    return types.float32(x, types.int64, types.int64), generate


@intrinsic
def sum_of_squares(typing_context: Any, x: Any, start: Any, dim: Any, center: Any) -> Any:
    """Return the sum of the squares of x[start] to x[start + dim - 1], each less `center`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        center = v.spread(builder, arguments[3])

        def add(numbers: Any, total: Any, mask: Any) -> Any:
            distances = builder.fsub(numbers, center)
            if mask is not None:
                distances = builder.select(mask, distances, v.zeros())
            return v.multiply_add(builder, distances, distances, total)

        return _RowSum(builder, arguments[0], arguments[1], x.dtype == types.uint16, add).emit(arguments[2])

    return types.float32(x, types.int64, types.int64, types.float32), generate


class _RowSum:
    """Write the code of a sum: four vectors of sums, and the last up to 63 numbers in the first of them."""

    def __init__(self, builder: Any, x: Any, start: Any, is_bfloat16: bool, add: _Add) -> None:
        self._builder, self._x, self._start, self._is_bfloat16, self._add = builder, x, start, is_bfloat16, add
        self._totals = [cgutils.alloca_once(builder, v.FLOATS) for _ in range(_VECTORS)]

    def emit(self, dim: Any) -> Any:
        builder, step = self._builder, v.I64(_VECTORS * v.LANES)
        for total in self._totals:
            builder.store(v.zeros(), total)
        whole = builder.sdiv(dim, step)
        with cgutils.for_range(builder, whole) as loop:
            self._add_vectors(builder.mul(loop.index, step), self._totals)
        done, lanes = builder.mul(whole, step), v.I64(v.LANES)
        rest = builder.sub(dim, done)
        with cgutils.for_range(builder, builder.sdiv(rest, lanes)) as loop:
            self._add_vectors(builder.add(done, builder.mul(loop.index, lanes)), self._totals[:1])
        last = builder.srem(rest, lanes)
        with builder.if_then(builder.icmp_signed(">", last, v.I64(0))):
            self._add_vectors(builder.sub(dim, last), self._totals[:1], width=last)
        first, *others = (builder.load(total) for total in self._totals)
        return v.sum_of_lanes(builder, functools.reduce(builder.fadd, others, first))

    def _add_vectors(self, index: Any, totals: list[Any], width: Any = None) -> None:
        """Add a vector to each of `totals`, from an element on; with `width`, of so many lanes."""
        builder = self._builder
        mask = None if width is None else v.lanes_below(builder, width)
        for vector, total in enumerate(totals):
            at = builder.add(self._start, builder.add(index, v.I64(vector * v.LANES)))
            numbers = v.load_floats(builder, self._x, at, self._is_bfloat16, width)
            builder.store(self._add(numbers, builder.load(total), mask), total)
