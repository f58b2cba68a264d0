"""Sums of products in registers, a few rows × up to three vectors of columns, by fused multiply-adds in fp32.

With AVX-512, 8 rows × 48 columns take 24 registers, with AVX2 4 rows × 24 columns 12. Each sum is one chain, whatever
the number of rows and the width of the vectors. Subnormal numbers count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.gemm.panels import PANEL_COLUMNS
from kernels.cpu.runtime import vectors as v

MOST_VECTORS = 3
"""Maximum of vectors of columns that are summed at a time."""


def is_there() -> bool:
    """Tell whether numba compiles for a CPU that has fused multiply-adds in vectors."""
    return v.has_feature("fma") and v.has_feature("avx2")


def is_wide() -> bool:
    """Tell whether it has vectors of 16 floats; otherwise they have 8."""
    return v.has_feature("avx512f")


def lanes() -> int:
    """Return the number of floats of a vector."""
    return 16 if is_wide() else 8


def most_rows() -> int:
    """Return the number of rows that are summed at a time."""
    return 8 if is_wide() else 4


@intrinsic
def rows_at_once(typing_context: Any) -> Any:
    """Return `most_rows()`, in compiled code."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return v.I64(most_rows())

    return types.int64(), generate


class Sums:
    """The sums of a fixed number of rows and of a panel's columns from `first` on, in this many vectors."""

    def __init__(self, builder: Any, rows: int, first: int, vectors: int = MOST_VECTORS) -> None:
        self._builder = builder
        self.rows, self.columns = rows, [first + vector * lanes() for vector in range(vectors)]
        self.floats = ir.VectorType(v.FLOAT, lanes())
        self._totals = [[cgutils.alloca_once(builder, self.floats) for _ in self.columns] for _ in range(rows)]
        kind = ir.FunctionType(self.floats, [self.floats] * 3)
        self._fused = builder.module.declare_intrinsic(f"llvm.fma.v{lanes()}f32", (), kind)

    def start(self, load: Callable[[int, int], Any]) -> None:
        """Initialize the sums with the vectors that `load` returns for a row and a column."""
        for row, totals in enumerate(self._totals):
            for column, total in zip(self.columns, totals, strict=True):
                self._builder.store(load(row, column), total)

    def add(self, weights: Sequence[Any], x: Callable[[int], Any]) -> None:
        """Add the products of the columns' weights with each row's number, which `x` loads."""
        builder = self._builder
        for row, totals in enumerate(self._totals):
            factor = v.spread(builder, x(row), self.floats)
            for total, weight in zip(totals, weights, strict=True):
                builder.store(builder.call(self._fused, [weight, factor, builder.load(total)]), total)

    def store(self, store: Callable[[Any, int, int], None]) -> None:
        """Pass every vector of sums to `store`, with its row and its first column."""
        for row, totals in enumerate(self._totals):
            for column, total in zip(self.columns, totals, strict=True):
                store(self._builder.load(total), row, column)


def write_for_rows(builder: Any, rows: Any, write: Callable[[int, int], None]) -> None:
    """Generate code for each number of rows (int64) and, by first column, the columns of a panel; one number's runs."""
    done = builder.append_basic_block("done")
    choice = builder.switch(rows, done)
    for count in range(1, most_rows() + 1):
        block = builder.append_basic_block(f"rows_{count}")
        choice.add_case(v.I64(count), block)
        with builder.goto_block(block):
            for first in range(0, PANEL_COLUMNS, MOST_VECTORS * lanes()):
                write(count, first)
            builder.branch(done)
    builder.position_at_end(done)
