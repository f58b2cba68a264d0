"""AMX for compiled CPU code: eight tiles of up to 16 rows × 64 bytes, and the products of two in bf16.

    sums[r, n] += Σ_k x[r, k] · w[k, n]        32 numbers of k at most; the even ones apart from the odd, then added

A tile of w has adjacent pairs of k, as a bf16 dot product does. A row's sums have one order whatever the other rows
hold. Subnormal numbers count as zero. Source: Intel 64 and IA-32 Architectures Software Developer's Manual, vol. 2,
LDTILECFG and TDPBF16PS; Linux, Documentation/arch/x86/xstate.rst, on the permission.
"""

from __future__ import annotations

import ctypes
import functools
import platform
from collections.abc import Sequence
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils

from kernels.cpu.runtime import vectors as v

TILE_ROWS = 16
TILE_BYTES = 64  # of a full row
TILE_DEPTH = 32  # numbers of k
NUM_TILES = 8

_PALETTE, _CONFIG_BYTES, _WIDTHS_AT, _HEIGHTS_AT = 1, 64, 16, 48
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18  # of Linux on x86-64


@functools.cache
def can_use() -> bool:
    """Tell whether this process may use AMX for bf16; requested from the system once, for all threads."""
    if not (v.has_feature("amx-bf16") and v.has_feature("amx-tile") and v.has_bfloat16_dot()):
        return False
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


class Tiles:
    """Generate code that uses a thread's tiles; pointers may be of any type."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder
        self._config = room(builder, _CONFIG_BYTES)

    def configure(self, shapes: Sequence[tuple[Any, int]]) -> None:
        """Set each tile's (rows, bytes of a row); rows are int64 values, 1 to 16. All tiles become zero."""
        builder = self._builder
        cgutils.memset(builder, self._config, v.I64(_CONFIG_BYTES), 0)
        builder.store(v.BYTE(_PALETTE), self._config)
        for tile, (rows, width) in enumerate(shapes):
            at = builder.bitcast(builder.gep(self._config, [v.I64(_WIDTHS_AT + 2 * tile)]), v.I16.as_pointer())
            builder.store(v.I16(width), at)
            builder.store(builder.trunc(rows, v.BYTE), builder.gep(self._config, [v.I64(_HEIGHTS_AT + tile)]))
        self._call("ldtilecfg", self._config)

    def clear(self, tile: int) -> None:
        self._call("tilezero", v.BYTE(tile))

    def load(self, tile: int, pointer: Any, stride: Any) -> None:
        """Load a tile whose rows are `stride` bytes (int64) apart; 0 repeats one row."""
        self._call("tileloadd64", v.BYTE(tile), as_bytes(self._builder, pointer), stride)

    def store(self, tile: int, pointer: Any, stride: Any) -> None:
        self._call("tilestored64", v.BYTE(tile), as_bytes(self._builder, pointer), stride)

    def add_products(self, sums: int, x: int, weight: int) -> None:
        self._call("tdpbf16ps", v.BYTE(sums), v.BYTE(x), v.BYTE(weight))

    def release(self) -> None:
        """Release the tiles, so that the system need not save them for this thread."""
        self._call("tilerelease")

    def _call(self, name: str, *arguments: Any) -> None:
        kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
        self._builder.call(self._builder.module.declare_intrinsic(f"llvm.x86.{name}", (), kind), arguments)


def room(builder: Any, size: int) -> Any:
    """Return the address of `size` bytes on the stack, at the start of a cache line."""
    memory = cgutils.alloca_once(builder, ir.ArrayType(v.BYTE, size))
    memory.align = 64
    return as_bytes(builder, memory)


def as_bytes(builder: Any, pointer: Any) -> Any:
    return builder.bitcast(pointer, v.BYTE.as_pointer())
