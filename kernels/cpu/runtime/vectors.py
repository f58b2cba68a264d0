"""Vectors of 16 floats for compiled CPU code, as LLVM instructions: loads, sums of lanes, the bf16 dot product.

numba's loops cannot keep a tile of sums in registers, so the inner pieces of kernels are intrinsics built from these.
All of it is plain LLVM, except functions that need AVX512-BF16: check `has_bfloat16_dot` before using them.
Source: Intel 64 and IA-32 Architectures Software Developer's Manual, vol. 2, VDPBF16PS.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import codegen, config

LANES = 16
PAIRED_LANES = 2 * LANES  # the operand size of one bf16 dot product


class BFloat(ir.Type):
    """LLVM's `bfloat`, for which llvmlite has no class."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


BIT, BYTE, I16, I32, I64 = ir.IntType(1), ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
FLOAT = ir.FloatType()
FLOATS = ir.VectorType(FLOAT, LANES)
WORDS = ir.VectorType(I32, LANES)
HALVES = ir.VectorType(I16, LANES)
PAIRS = ir.VectorType(I16, PAIRED_LANES)
_BFLOATS = ir.VectorType(BFloat(), PAIRED_LANES)
_EXP2_POLYNOMIAL = (1.5337577e-04, 1.3399860e-03, 9.6185198e-03, 5.5503290e-02, 2.4022646e-01, 6.9314718e-01, 1.0)
_PAIRED_WORDS = ir.VectorType(I32, PAIRED_LANES)


def has_bfloat16_dot() -> bool:
    """Tell whether numba compiles for a processor with AVX512-BF16; call while compiling, not at import."""
    return has_feature("avx512bf16")


def has_feature(name: str) -> bool:
    """Tell whether numba compiles for a processor with this feature, by LLVM's name; NUMBA_CPU_NAME may forbid it."""
    features = config.CPU_FEATURES
    if features is None:
        features = "" if config.CPU_NAME else codegen.get_host_cpu_features()
    return f"+{name}" in features.split(",")


def load_vector(builder: Any, pointer: Any, index: Any, vector: Any, width: Any = None) -> Any:
    """Load a vector from element `index` on; with `width`, only this many lanes, others are zero and not read."""
    address = builder.bitcast(builder.gep(pointer, [index]), vector.as_pointer())
    size = vector.element.width // 8 if isinstance(vector.element, ir.IntType) else 4
    if width is None:
        return builder.load(address, align=size)
    mask = lanes_below(builder, width, vector.count)
    kind = ir.FunctionType(vector, [vector.as_pointer(), I32, ir.VectorType(BIT, vector.count), vector])
    letter = "i" if isinstance(vector.element, ir.IntType) else "f"
    name = f"llvm.masked.load.v{vector.count}{letter}{8 * size}.p0"
    return builder.call(
        builder.module.declare_intrinsic(name, (), kind), [address, I32(size), mask, ir.Constant(vector, None)]
    )


def load_floats(builder: Any, pointer: Any, index: Any, is_bfloat16: Any, width: Any = None) -> Any:
    """Load 16 floats, widened in registers if the memory is bf16."""
    if not is_bfloat16:
        return load_vector(builder, pointer, index, FLOATS, width)
    return widen_bfloat16(builder, load_vector(builder, pointer, index, HALVES, width))


def store_floats(builder: Any, floats: Any, pointer: Any, index: Any, width: Any = None) -> None:
    """Store a vector of floats from element `index` on; with `width`, only this many lanes."""
    vector = floats.type
    address = builder.bitcast(builder.gep(pointer, [index]), vector.as_pointer())
    if width is None:
        builder.store(floats, address, align=4)
        return
    mask = lanes_below(builder, width, vector.count)
    kind = ir.FunctionType(ir.VoidType(), [vector, vector.as_pointer(), I32, ir.VectorType(BIT, vector.count)])
    name = f"llvm.masked.store.v{vector.count}f32.p0"
    builder.call(builder.module.declare_intrinsic(name, (), kind), [floats, address, I32(4), mask])


def spread(builder: Any, number: Any, vector: Any = FLOATS) -> Any:
    """Return a vector with `number` in every lane."""
    empty = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(empty, number, I32(0))
    return builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(I32, vector.count), [0] * vector.count))


def zeros() -> Any:
    """Return 16 zeros."""
    return ir.Constant(FLOATS, [0.0] * LANES)


def multiply_add(builder: Any, a: Any, b: Any, total: Any) -> Any:
    """Return a · b + total of floats or vectors, fused everywhere if the processor supports it.

    A separate product and sum may be fused in one place and not in another: numba leaves that to LLVM.
    """
    kind = a.type
    name = "llvm.fmuladd.v16f32" if kind == FLOATS else "llvm.fmuladd.f32"
    add = builder.module.declare_intrinsic(name, (), ir.FunctionType(kind, [kind, kind, kind]))
    return builder.call(add, [a, b, total])


def dot_pairs(builder: Any, a: Any, b: Any, total: Any) -> Any:
    """Return total + a[2n] · b[2n] + a[2n + 1] · b[2n + 1] for 16 pairs of bf16; subnormal numbers count as zero."""
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    kind = ir.FunctionType(FLOATS, [FLOATS, _BFLOATS, _BFLOATS])
    dot = builder.module.declare_intrinsic(name, (), kind)
    return builder.call(dot, [total, builder.bitcast(a, _BFLOATS), builder.bitcast(b, _BFLOATS)])


def larger(builder: Any, a: Any, b: Any) -> Any:
    """Return a if it is above b, else b (so b if a is NaN)."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def smaller(builder: Any, a: Any, b: Any) -> Any:
    """Return a if it is below b, else b (so b if a is NaN)."""
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


def sum_of_lanes(builder: Any, floats: Any) -> Any:
    """Return the sum of 16 floats, halves first."""
    return _over_lanes(builder, floats, builder.fadd)


def largest_lane(builder: Any, floats: Any) -> Any:
    """Return the largest of 16 floats."""
    return _over_lanes(builder, floats, lambda a, b: larger(builder, a, b))


def _over_lanes(builder: Any, floats: Any, combine: Any) -> Any:
    for distance in (8, 4, 2, 1):
        lanes = ir.Constant(WORDS, [lane ^ distance for lane in range(LANES)])
        floats = combine(floats, builder.shuffle_vector(floats, floats, lanes))
    return builder.extract_element(floats, I32(0))


def lower(builder: Any, a: Any, b: Any) -> Any:
    """Return the lower of two int64."""
    return builder.select(builder.icmp_signed("<", a, b), a, b)


def higher(builder: Any, a: Any, b: Any) -> Any:
    """Return the higher of two int64."""
    return builder.select(builder.icmp_signed(">", a, b), a, b)


def lanes_below(builder: Any, count: Any, lanes: int = LANES) -> Any:
    """Return a mask of the lanes with a number below `count` (int64)."""
    numbers = ir.VectorType(I64, lanes)
    return builder.icmp_signed("<", ir.Constant(numbers, list(range(lanes))), spread(builder, count, numbers))


def lanes_within(builder: Any, first: Any, count: Any) -> Any:
    """Return a mask of the lanes [first, first + count) of 16; both int64, and count not negative."""
    first, count = (builder.trunc(number, I32) for number in (first, count))
    numbers = builder.sub(ir.Constant(WORDS, list(range(LANES))), spread(builder, first, WORDS))
    return builder.icmp_unsigned("<", numbers, spread(builder, count, WORDS))


def exp2(builder: Any, x: Any) -> Any:
    """Compute 2**x with the polynomial of memory.exp2, and the same accuracy, in [−126, 126]. A NaN stays NaN.

    Far below, including −∞, the result is 0; above, at least 2**126.
    """
    if has_feature("avx512f"):  # which scales a NaN, such as −∞ less its rounding, by 2**−∞ to 0, and by 2**∞ to ∞
        whole = _round(builder, x)
        return _scale(builder, _polynomial(builder, builder.fsub(x, whole)), whole)
    bounded = smaller(builder, larger(builder, x, _all(-126.0)), _all(126.0))
    whole = _round(builder, bounded)
    biased = builder.add(builder.fptosi(whole, WORDS), ir.Constant(WORDS, [127] * LANES))
    scale = builder.bitcast(builder.shl(biased, ir.Constant(WORDS, [23] * LANES)), FLOATS)
    power = builder.fmul(_polynomial(builder, builder.fsub(bounded, whole)), scale)
    power = builder.select(builder.fcmp_ordered("<", x, _all(-126.0)), zeros(), power)
    return builder.select(builder.fcmp_unordered("uno", x, x), x, power)


def _polynomial(builder: Any, f: Any) -> Any:
    p = _all(_EXP2_POLYNOMIAL[0])
    for factor in _EXP2_POLYNOMIAL[1:]:
        p = multiply_add(builder, p, f, _all(factor))
    return p


def _round(builder: Any, floats: Any) -> Any:
    """Round to the nearest whole numbers."""
    rounded = builder.module.declare_intrinsic("llvm.roundeven.v16f32", (), ir.FunctionType(FLOATS, [FLOATS]))
    return builder.call(rounded, [floats])


def _scale(builder: Any, floats: Any, powers: Any) -> Any:
    """Return floats · 2**powers, 0 if that is too small for a float. Needs AVX-512."""
    kind = ir.FunctionType(FLOATS, [FLOATS, FLOATS, FLOATS, I16, I32])
    scaled = builder.module.declare_intrinsic("llvm.x86.avx512.mask.scalef.ps.512", (), kind)
    every_lane, current_rounding = I16(-1), I32(4)
    return builder.call(scaled, [floats, powers, zeros(), every_lane, current_rounding])


def _all(number: float) -> Any:
    return ir.Constant(FLOATS, [number] * LANES)


def round_to_bfloat16(builder: Any, floats: Any) -> Any:
    """Round 16 floats to the bits of bf16, to nearest even; subnormal numbers become zero. Needs AVX512-BF16."""
    kind = ir.FunctionType(ir.VectorType(BFloat(), LANES), [FLOATS])
    rounded = builder.module.declare_intrinsic("llvm.x86.avx512bf16.cvtneps2bf16.512", (), kind)
    return builder.bitcast(builder.call(rounded, [floats]), HALVES)


def widen_bfloat16(builder: Any, halves: Any) -> Any:
    """Return the floats of 16 bf16."""
    return builder.bitcast(builder.shl(builder.zext(halves, WORDS), ir.Constant(WORDS, [16] * LANES)), FLOATS)


def widen_half(builder: Any, words: Any, half: int) -> Any:
    """Return the floats of the first (0) or second (1) bf16 of 16 pairs."""
    if half == 0:
        return builder.bitcast(builder.shl(words, ir.Constant(WORDS, [16] * LANES)), FLOATS)
    return builder.bitcast(keep_halves(builder, words, (1,)), FLOATS)


def keep_halves(builder: Any, words: Any, halves: tuple[int, ...]) -> Any:
    """Return 16 pairs of bf16 with zeros where the first (0) or second (1) is not among `halves`."""
    if halves == (0, 1):
        return words
    return builder.and_(words, ir.Constant(WORDS, [sum(0xFFFF << 16 * half for half in halves)] * LANES))


def prefetch(builder: Any, pointer: Any, index: Any, *, is_nearest: bool = False) -> None:
    """Prefetch the cache line of element `index`, into the second-level cache or the nearest.

    An invalid address does no harm.
    """
    kind = ir.FunctionType(ir.VoidType(), [BYTE.as_pointer(), I32, I32, I32])
    fetch = builder.module.declare_intrinsic("llvm.prefetch.p0", (), kind)
    address = builder.bitcast(builder.gep(pointer, [index]), BYTE.as_pointer())
    read, data, locality = I32(0), I32(1), I32(3 if is_nearest else 2)
    builder.call(fetch, [address, read, locality, data])
