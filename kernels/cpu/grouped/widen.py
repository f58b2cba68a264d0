"""Widen a panel of whole numbers to the panel of fp32 or bf16 that the units of cpu/gemm/ multiply.

    w = scale · (number − zero) + minimum        one multiply-add in fp32, in bf16 rounded to nearest even

So its bits, and those of every product, are the ones of a weight that was widened when it was loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from kernels.cpu.gemm.panels import PANEL_COLUMNS
from kernels.cpu.gemm.rounded import rounded_words
from kernels.cpu.gemm.sums import lanes
from kernels.cpu.runtime import vectors as v
from kernels.cpu.runtime.memory import jit
from kernels.grouped_weight import FEWEST_SCALED, GROUP

_WORD_NUMBERS = 4
_WORDS = {4: GROUP // _WORD_NUMBERS // 2, 8: GROUP // _WORD_NUMBERS}
"""Words of a group and column, by the bits of a number."""


def group_bytes(bits: int) -> int:
    """Return the size of a group's numbers in a panel."""
    return _WORDS[bits] * _WORD_NUMBERS * PANEL_COLUMNS


def _widener(bits: int, dtype_bytes: int) -> Any:
    """Return a compiled function that writes a panel of this many bits a number as fp32 or bf16."""
    numbers_bytes, target_bytes = group_bytes(bits), GROUP * PANEL_COLUMNS * dtype_bytes

    @intrinsic
    def widen_group(typing_context: Any, numbers: Any, scales: Any, layout: Any, target: Any) -> Any:
        """Widen 32 numbers; `scales` are the addresses of those of the first 16 and of the others."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _GroupCode(builder, arguments, bits=bits, dtype_bytes=dtype_bytes).write()
            return context.get_dummy_value()

        return types.void(types.int64, scales, layout, types.int64), generate

    @jit
    def widen_panel(panel: int, groups: int, layout: Any, target: int) -> None:
        """Write the panel at an address to `target`; `layout` has the last five of panels.py's `WORDS`."""
        num_scales, scale_shift, scale_bytes, has_minima, zero = layout
        scales, scales_bytes = panel + groups * numbers_bytes, PANEL_COLUMNS * scale_bytes
        minima = num_scales * scales_bytes if has_minima else 0
        for group in range(groups):
            low, high = 2 * group >> scale_shift, 2 * group + 1 >> scale_shift
            widen_group(
                panel + group * numbers_bytes, (scales + low * scales_bytes, scales + high * scales_bytes),
                (scale_bytes, minima, zero), target + group * target_bytes,
            )  # fmt: skip

    return widen_panel


class _GroupCode:
    """Generate the code for a group of 48 columns: numbers, scales, (scale_bytes, distance of minima, zero), target."""

    def __init__(self, builder: Any, arguments: Any, *, bits: int, dtype_bytes: int) -> None:
        self._builder, self._bits, self._dtype_bytes = builder, bits, dtype_bytes
        numbers, scales, layout, target = arguments
        self._numbers, self._target = (builder.inttoptr(at, v.BYTE.as_pointer()) for at in (numbers, target))
        self._scales = [builder.extract_value(scales, half) for half in range(2)]
        self._scale_bytes, self._minima, self._zero = (builder.extract_value(layout, index) for index in range(3))
        self._words, self._floats = (ir.VectorType(kind, lanes()) for kind in (v.I32, v.FLOAT))

    def write(self) -> None:
        zero = v.spread(self._builder, self._builder.trunc(self._zero, v.I32), self._words)
        for column in range(0, PANEL_COLUMNS, lanes()):
            factors = [
                (zero, *load_scales(self._builder, scales, self._scale_bytes, self._minima, column))
                for scales in self._scales
            ]
            for word in range(_WORDS[self._bits]):
                self._write_word(word, column, factors)

    def _write_word(self, word: int, column: int, factors: list[tuple[Any, Any, Any]]) -> None:
        """Write the numbers of a word; `factors` are those of the first 16 of the group and of the others."""
        at = v.I64(_WORD_NUMBERS * (word * PANEL_COLUMNS + column))
        words = v.load_vector(self._builder, self._numbers, at, self._words)
        for half in range(8 // self._bits):
            first = _WORD_NUMBERS * word + half * GROUP // 2
            values = list(self._values(words, self._bits * half, factors[first // FEWEST_SCALED]))
            for index in range(0, _WORD_NUMBERS, 4 // self._dtype_bytes):
                self._store(values[index : index + 4 // self._dtype_bytes], first + index, column)

    def _values(self, words: Any, shift: int, factors: tuple[Any, Any, Any]) -> Iterator[Any]:
        """Yield the floats of the four numbers that start at bit `shift` of each byte."""
        builder, (zero, scale, minimum) = self._builder, factors
        for byte in range(_WORD_NUMBERS):
            shifted = builder.lshr(words, self._every(8 * byte + shift))
            number = builder.sub(builder.and_(shifted, self._every(2**self._bits - 1)), zero)
            yield fused(builder, builder.sitofp(number, self._floats), scale, minimum)

    def _store(self, values: list[Any], k: int, column: int) -> None:
        """Store one number of k in fp32, or the pair from k on in bf16: words of four bytes either way."""
        builder = self._builder
        if len(values) == 1:
            word = builder.bitcast(values[0], self._words)
        else:
            low, high = (rounded_words(builder, value) for value in values)
            word = builder.or_(builder.lshr(low, self._every(16)), builder.and_(high, self._every(0xFFFF0000)))
        at = v.I64(self._dtype_bytes * k * PANEL_COLUMNS + 4 * column)
        builder.store(word, builder.bitcast(builder.gep(self._target, [at]), self._words.as_pointer()), align=4)

    def _every(self, number: int) -> Any:
        return ir.Constant(self._words, [number] * lanes())


def load_scales(builder: Any, scales: Any, scale_bytes: Any, minima: Any, column: int) -> tuple[Any, Any]:
    """Return the scales and minima of a vector of columns of a group; minima that are not there are −0, which adds 0.

    `scales` is the address of the group's scales, `minima` the distance of its minima from them, 0 if there are none.
    """
    floats = ir.VectorType(v.FLOAT, lanes())
    scale = load_floats(builder, scales, scale_bytes, column)
    none = builder.basic_block
    with builder.if_then(builder.icmp_signed("!=", minima, v.I64(0))):
        loaded = load_floats(builder, builder.add(scales, minima), scale_bytes, column)
        some = builder.basic_block
    minimum = builder.phi(floats)
    minimum.add_incoming(ir.Constant(floats, [-0.0] * lanes()), none)
    minimum.add_incoming(loaded, some)
    return scale, minimum


def load_floats(builder: Any, address: Any, size: Any, column: int) -> Any:
    """Load a vector of fp16 or fp32 (`size` bytes each, int64) from `column` on, as fp32."""
    floats, halves = ir.VectorType(v.FLOAT, lanes()), ir.VectorType(ir.HalfType(), lanes())
    start = builder.inttoptr(address, v.BYTE.as_pointer())

    def load(vector: Any, item_bytes: int) -> Any:
        place = builder.gep(start, [v.I64(item_bytes * column)])
        return builder.load(builder.bitcast(place, vector.as_pointer()), align=item_bytes)

    if not v.has_feature("f16c"):  # panels.py stores fp32 only
        return load(floats, 4)
    with builder.if_else(builder.icmp_signed("==", size, v.I64(2))) as (of_halves, of_floats):
        with of_halves:
            widened = builder.fpext(load(halves, 2), floats)
            after_halves = builder.basic_block
        with of_floats:
            whole = load(floats, 4)
            after_floats = builder.basic_block
    number = builder.phi(floats)
    number.add_incoming(widened, after_halves)
    number.add_incoming(whole, after_floats)
    return number


def fused(builder: Any, a: Any, b: Any, total: Any) -> Any:
    """Return a · b + total of vectors, rounded once."""
    kind = ir.FunctionType(a.type, [a.type] * 3)
    return builder.call(builder.module.declare_intrinsic(f"llvm.fma.v{a.type.count}f32", (), kind), [a, b, total])


widen_panel = {(bits, dtype_bytes): _widener(bits, dtype_bytes) for bits in _WORDS for dtype_bytes in (2, 4)}
"""`widen_panel[bits, dtype_bytes](panel, groups, layout, target)`, in compiled code."""
