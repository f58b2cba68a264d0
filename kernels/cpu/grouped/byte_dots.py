"""Four products of unsigned and signed bytes, added to a sum of 32 bits, in every lane: exact on every CPU.

By VNNI (one instruction), by AVX2 or AVX-512BW, or in plain vectors. Source: Intel 64 and IA-32 Architectures Software
Developer's Manual, vol. 2, VPDPBUSD, VPMADDUBSW, VPMADDWD.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]

from kernels.cpu.gemm.sums import is_wide, lanes
from kernels.cpu.runtime import vectors as v


def has_vnni() -> bool:
    """Tell whether numba compiles for a CPU with VNNI, for vectors of `lanes()`."""
    return v.has_feature("avx512vnni") if is_wide() else v.has_feature("avxvnni")


def has_byte_products() -> bool:
    """Tell whether it has products of bytes or of 16 bits for vectors of `lanes()`."""
    return v.has_feature("avx512bw") if is_wide() else v.has_feature("avx2")


def dot(builder: Any, total: Any, numbers: Any, x: Any, *, bits: int) -> Any:
    """Return `total` and four products in each lane: of `numbers`, unsigned of this many bits in bytes, and signed x.

    All three are vectors of int32; two numbers of 4 bits times bytes fit into 16 bits, two of 8 do not.
    """
    if has_vnni():
        kind = ir.FunctionType(total.type, [total.type] * 3)
        name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes()}"
        return builder.call(builder.module.declare_intrinsic(name, (), kind), [total, numbers, x])
    if not has_byte_products():
        return _plainly(builder, total, numbers, x)
    if bits == 4:
        ones = ir.Constant(_pairs(), [1] * _pairs().count)
        return builder.add(total, _add_pairs(builder, _multiply_bytes(builder, numbers, x), ones))
    for numbers_of, x_of in _halves(builder, numbers, x):
        total = builder.add(total, _add_pairs(builder, numbers_of, x_of))
    return total


def _plainly(builder: Any, total: Any, numbers: Any, x: Any) -> Any:
    for byte in range(4):
        number = builder.and_(builder.lshr(numbers, _every(v.I32, 8 * byte)), _every(v.I32, 0xFF))
        factor = builder.ashr(builder.shl(x, _every(v.I32, 24 - 8 * byte)), _every(v.I32, 24))
        total = builder.add(total, builder.mul(number, factor))
    return total


def _halves(builder: Any, numbers: Any, x: Any) -> list[tuple[Any, Any]]:
    """Return the even bytes of both in 16 bits, and the odd ones: two of each in a lane."""
    numbers, x = (builder.bitcast(vector, _pairs()) for vector in (numbers, x))
    eight = _every(v.I16, 8)
    even = builder.and_(numbers, _every(v.I16, 0xFF)), builder.ashr(builder.shl(x, eight), eight)
    return [even, (builder.lshr(numbers, eight), builder.ashr(x, eight))]


def _multiply_bytes(builder: Any, numbers: Any, x: Any) -> Any:
    """Return the sums of two adjacent products of bytes, in 16 bits."""
    name = "llvm.x86.avx512.pmaddubs.w.512" if is_wide() else "llvm.x86.avx2.pmadd.ub.sw"
    kind = ir.VectorType(v.BYTE, 4 * lanes())
    multiply = builder.module.declare_intrinsic(name, (), ir.FunctionType(_pairs(), [kind, kind]))
    return builder.call(multiply, [builder.bitcast(vector, kind) for vector in (numbers, x)])


def _add_pairs(builder: Any, a: Any, b: Any) -> Any:
    """Return the sums of two adjacent products of 16 bits, in 32."""
    name = "llvm.x86.avx512.pmaddw.d.512" if is_wide() else "llvm.x86.avx2.pmadd.wd"
    kind = ir.FunctionType(ir.VectorType(v.I32, lanes()), [_pairs(), _pairs()])
    return builder.call(builder.module.declare_intrinsic(name, (), kind), [a, b])


def _pairs() -> Any:
    return ir.VectorType(v.I16, 2 * lanes())


def _every(kind: Any, number: int) -> Any:
    count = lanes() * 32 // kind.width
    return ir.Constant(ir.VectorType(kind, count), [number] * count)
