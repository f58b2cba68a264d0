"""One small matrix product for compiled CPU code: a panel of 6 rows times 16 columns, held in vector registers.

    C[6, 16] (+)= A[6, depth] · B[depth, 16]        all float32, row-major with their own row strides

numba's loops cannot keep such a panel in registers, so this one function is written as LLVM vectors. 6 × 16 fills the
registers of AVX-512 (6 of 32), AVX2 (12 of 16) and NEON (24 of 32) without spilling.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

PANEL_ROWS = 6
PANEL_COLUMNS = 16

_VECTOR = ir.VectorType(ir.FloatType(), PANEL_COLUMNS)
_WORD = ir.IntType(64)


@intrinsic
def multiply_panel(  # noqa: PLR0917  compiled
    typing_context: Any, a: Any, a_stride: Any, b: Any, b_stride: Any, c: Any, c_stride: Any, depth: Any, keep: Any
) -> Any:
    """Add A · B to the panel at `c` (`keep` = 1), or overwrite it (`keep` = 0).

    a, b, c are float32 pointers, the strides count floats. Reads exactly 6 rows of A, `depth` rows of B.
    """
    pointer = types.CPointer(types.float32)
    signature = types.void(pointer, types.int64, pointer, types.int64, pointer, types.int64, types.int64, types.int64)
    return signature, _generate


def _generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    a, a_stride, b, b_stride, c, c_stride, depth, keep = arguments
    zero = ir.Constant(_VECTOR, [0.0] * PANEL_COLUMNS)
    totals = [cgutils.alloca_once(builder, _VECTOR) for _ in range(PANEL_ROWS)]
    is_kept = builder.icmp_signed("!=", keep, ir.Constant(_WORD, 0))
    with builder.if_else(is_kept) as (kept, fresh):
        with kept:
            for row, total in enumerate(totals):
                builder.store(_load_vector(builder, c, _times(builder, c_stride, row)), total)
        with fresh:
            for total in totals:
                builder.store(zero, total)
    with cgutils.for_range(builder, depth) as loop:
        columns = _load_vector(builder, b, builder.mul(loop.index, b_stride))
        for row, total in enumerate(totals):
            index = builder.add(_times(builder, a_stride, row), loop.index)
            product = builder.fmul(_spread(builder, builder.load(builder.gep(a, [index]))), columns, ("contract",))
            builder.store(builder.fadd(builder.load(total), product, ("contract",)), total)
    for row, total in enumerate(totals):
        address = builder.bitcast(builder.gep(c, [_times(builder, c_stride, row)]), _VECTOR.as_pointer())
        builder.store(builder.load(total), address, align=4)
    return context.get_dummy_value()


def _times(builder: Any, stride: Any, row: int) -> Any:
    return builder.mul(stride, ir.Constant(_WORD, row))


def _load_vector(builder: Any, pointer: Any, index: Any) -> Any:
    return builder.load(builder.bitcast(builder.gep(pointer, [index]), _VECTOR.as_pointer()), align=4)


def _spread(builder: Any, number: Any) -> Any:
    empty = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(empty, number, ir.Constant(ir.IntType(32), 0))
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), PANEL_COLUMNS), [0] * PANEL_COLUMNS)
    return builder.shuffle_vector(first, empty, lanes)
