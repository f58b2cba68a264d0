"""The unit that computes attention's products, chosen while a kernel is compiled: vectors or AMX's tiles.

Each function here takes (unit, arguments). Units are distinguished by the types of their constants' values.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from kernels.cpu.attention import products, tiles
from kernels.cpu.attention.products import MAX_ROWS
from kernels.cpu.runtime.amx import TILE_ROWS
from kernels.cpu.runtime.memory import bfloat16_at, float32_at, jit
from kernels.cpu.runtime.vectors import has_bfloat16_dot

DOTS = None  # bf16 dot products if queries and cache are bf16 and the CPU has them, else multiply-adds
MULTIPLY_ADDS = 0  # in fp32 on every CPU
TILES = True


def _is_tiles(unit: Any) -> bool:
    return isinstance(unit, types.Boolean)


def operand_at(unit: Any, query: Any, keys: Any, address: Any) -> Any:
    """Return a pointer to queries or shares in the dtype that the unit takes."""
    raise NotImplementedError("runs in compiled code only")


@overload(operand_at)
def _operand_pointer(unit: Any, query: Any, keys: Any, address: Any) -> Any:
    both_bfloat16 = query.dtype == keys.dtype == types.uint16
    takes_bfloat16 = both_bfloat16 and has_bfloat16_dot() and not isinstance(unit, types.Integer)
    pointer_at = bfloat16_at if takes_bfloat16 else float32_at

    def pointer(unit: Any, query: Any, keys: Any, address: Any) -> Any:
        return pointer_at(address)

    return pointer


def _either(by_vectors: Any, by_tiles: Any) -> Any:
    """Return a function of (unit, arguments) that calls one of two, chosen while compiling."""

    def call(unit: Any, arguments: Any) -> Any:
        raise NotImplementedError("runs in compiled code only")

    @overload(call)
    def _call(unit: Any, arguments: Any) -> Any:
        chosen = by_tiles if _is_tiles(unit) else by_vectors

        def run(unit: Any, arguments: Any) -> Any:
            return chosen(*arguments)

        return run

    return call


def _either_intrinsic(by_vectors: Any, by_tiles: Any) -> Any:
    """Do the same for two intrinsics: a function around one is compiled twice, once by itself."""

    @intrinsic
    def call(typing_context: Any, unit: Any, arguments: Any) -> Any:
        chosen = by_tiles if _is_tiles(unit) else by_vectors
        own, generate = chosen.__wrapped__(typing_context, *arguments)

        def generate_own(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            given = cgutils.unpack_tuple(builder, values[1])
            cast = [context.cast(builder, *one) for one in zip(given, arguments, own.args, strict=True)]
            return generate(context, builder, own, cast)

        return own.return_type(unit, arguments), generate_own

    return call


@jit
def _keep_none(shape: Any, rows: int) -> None:
    """Keep no tiles."""


score_keys = _either_intrinsic(products.score_keys, tiles.score_keys)
add_values = _either_intrinsic(products.add_values, tiles.add_values)
keep_tiles = _either(_keep_none, tiles.keep)
rows_at_once = _either(jit(lambda: MAX_ROWS), jit(lambda: TILE_ROWS))
