"""Round rows of activations to whole numbers of 8 bits in groups of 32, each with a scale of its own.

    scale = max |x| / 127        number = round(x / scale), to nearest even

A scale for each group and not for each row: on SmolLM2-135M the answers' KL divergence from those of exact activations
is a twelfth (docs/adr/0061). A row becomes `[in]` int8, then for each group its scale, its sum (scale · Σ number) and
the start of its products (−zero · Σ number, int32), in 16 bytes. A group with a NaN or an infinity has the scale NaN.
"""

from __future__ import annotations

from typing import Any

import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from kernels.cpu.gemm.sums import lanes
from kernels.cpu.runtime import vectors as v
from kernels.cpu.runtime.block import NUM_TASKS, Block
from kernels.cpu.runtime.launch import CpuKernel, keep
from kernels.cpu.runtime.memory import fetch_add, jit_once
from kernels.grouped_weight import GROUP

FACTORS_BYTES = 16
SCALE, SUM, START = 0, 4, 8
"""Offsets in a group's factors: fp32, fp32, int32."""

_MOST = 127.0
_PARALLEL_FROM = 65_536  # elements; below, starting the second thread costs more than it saves

_BLOCK = Block("x* out* x_stride out_stride groups zero")
_AT = _BLOCK.at


@jit_once
def _round_rows(p: Any, round_group: Any, x_bytes: int) -> None:
    """Take tasks of one row."""
    groups, zero = p[_AT.groups], p[_AT.zero]
    while True:
        row = fetch_add(p, 1)
        if row >= p[NUM_TASKS]:
            break
        x, out = p[_AT.x] + x_bytes * row * p[_AT.x_stride], p[_AT.out] + row * p[_AT.out_stride]
        for group in range(groups):
            factors = out + groups * GROUP + group * FACTORS_BYTES
            round_group(x + x_bytes * GROUP * group, out + GROUP * group, factors, zero)


def _rounder(dtype_bytes: int) -> Any:
    @intrinsic
    def round_group(typing_context: Any, x: Any, numbers: Any, factors: Any, zero: Any) -> Any:
        """Round 32 numbers of fp32 or bf16; all are addresses but `zero`."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _GroupCode(builder, dtype_bytes).write(*arguments)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64, types.int64), generate

    return round_group


class _GroupCode:
    """Generate the code for a group."""

    def __init__(self, builder: Any, dtype_bytes: int) -> None:
        self._builder, self._dtype_bytes = builder, dtype_bytes
        self._words, self._floats = (ir.VectorType(kind, lanes()) for kind in (v.I32, v.FLOAT))

    def write(self, x: Any, numbers: Any, factors: Any, zero: Any) -> None:
        builder = self._builder
        vectors = [self._load(x, start) for start in range(0, GROUP, lanes())]
        largest, wrong = self._largest(vectors)
        scale = builder.fadd(builder.fdiv(largest, v.FLOAT(_MOST)), wrong)
        is_zero = builder.fcmp_ordered("==", largest, v.FLOAT(0.0))
        inverse = builder.fdiv(v.FLOAT(_MOST), builder.select(is_zero, v.FLOAT(1.0), largest))
        rounded = [self._round(vector, v.spread(builder, inverse, self._floats)) for vector in vectors]
        for start, vector in zip(range(0, GROUP, lanes()), rounded, strict=True):
            narrow = builder.trunc(vector, ir.VectorType(v.BYTE, lanes()))
            builder.store(narrow, self._at(numbers, start, narrow.type), align=1)
        total = self._reduce(rounded, builder.add)
        product = builder.fmul(scale, builder.sitofp(total, v.FLOAT))
        start = builder.mul(total, builder.neg(builder.trunc(zero, v.I32)))
        for offset, number in ((SCALE, scale), (SUM, product), (START, start)):
            builder.store(number, self._at(factors, offset, number.type), align=4)

    def _load(self, x: Any, start: int) -> Any:
        builder = self._builder
        kind = self._floats if self._dtype_bytes == 4 else ir.VectorType(v.I16, lanes())
        numbers = builder.load(self._at(x, self._dtype_bytes * start, kind), align=self._dtype_bytes)
        if self._dtype_bytes == 4:
            return numbers
        sixteen = ir.Constant(self._words, [16] * lanes())
        return builder.bitcast(builder.shl(builder.zext(numbers, self._words), sixteen), self._floats)

    def _largest(self, vectors: list[Any]) -> tuple[Any, Any]:
        """Return the largest absolute value, and NaN if any number is not finite, otherwise 0."""
        builder = self._builder
        kind = ir.FunctionType(self._floats, [self._floats])
        absolute = builder.module.declare_intrinsic(f"llvm.fabs.v{lanes()}f32", (), kind)
        sizes = [builder.call(absolute, [vector]) for vector in vectors]
        differences = [builder.fsub(vector, vector) for vector in vectors]
        return self._reduce(sizes, lambda a, b: v.larger(builder, a, b)), self._reduce(differences, builder.fadd)

    def _round(self, vector: Any, inverse: Any) -> Any:
        builder = self._builder
        kind = ir.FunctionType(self._floats, [self._floats])
        nearest = builder.module.declare_intrinsic(f"llvm.rint.v{lanes()}f32", (), kind)
        rounded = builder.call(nearest, [builder.fmul(vector, inverse)])
        most, least = (ir.Constant(self._floats, [sign * _MOST] * lanes()) for sign in (1, -1))
        return builder.fptosi(v.smaller(builder, v.larger(builder, rounded, least), most), self._words)

    def _reduce(self, vectors: list[Any], combine: Any) -> Any:
        """Combine all lanes of all vectors: the vectors first, then halves."""
        builder, total = self._builder, vectors[0]
        for vector in vectors[1:]:
            total = combine(total, vector)
        for distance in (lanes() >> step for step in range(1, lanes().bit_length())):
            order = ir.Constant(self._words, [lane ^ distance for lane in range(lanes())])
            total = combine(total, builder.shuffle_vector(total, total, order))
        return builder.extract_element(total, v.I32(0))

    def _at(self, address: Any, offset: int, kind: Any) -> Any:
        return self._builder.inttoptr(self._builder.add(address, v.I64(offset)), kind.as_pointer())


_ROUND_HALVES, _ROUND_FLOATS = _rounder(2), _rounder(4)


def _of_bfloat16(p: Any) -> None:
    _round_rows(p, _ROUND_HALVES, 2)


def _of_float32(p: Any) -> None:
    _round_rows(p, _ROUND_FLOATS, 4)


_KERNELS = {torch.bfloat16: CpuKernel(_of_bfloat16, _BLOCK), torch.float32: CpuKernel(_of_float32, _BLOCK)}


def row_bytes(depth: int) -> int:
    """Return the size of a rounded row."""
    return depth + depth // GROUP * FACTORS_BYTES


def round_rows(x: Tensor, *, zero: int) -> Tensor:
    """Round x `[rows, in]`, fp32 or bf16, for a weight whose number `zero` means 0, to uint8 `[rows, row_bytes]`."""
    rows, depth = x.shape
    out = keep(torch.empty((rows, row_bytes(depth)), dtype=torch.uint8))
    words = x.data_ptr(), out.data_ptr(), x.stride(0), out.stride(0), depth // GROUP, zero
    _KERNELS[x.dtype](rows, words, parallel=x.numel() >= _PARALLEL_FROM)
    return out
