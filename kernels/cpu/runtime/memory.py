"""Tensor memory for CPU kernels: pointers, bf16, an atomic counter, a fast exp2.

The kernels take addresses, not arrays: wrapping ten tensors as numba arrays costs more than the smaller ops themselves,
and numba has no bfloat16. These functions run inside numba-compiled code only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic, overload

# Multiply-adds may be fused, and nothing else, so that a row's bits are the same on every CPU with FMA (README.md).
# `arcp` makes 1 / sqrt the CPU's own estimate, which differs between makers; `reassoc` sums in as many lanes as the CPU
# has, and for four rows differently than for one; under `nnan` a NaN in an input need not come out as NaN.
FASTMATH = {"contract"}

# Helpers are never called from Python: numba's wrappers for that would be compiled too.
_OPTIONS = {"fastmath": FASTMATH, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

# A helper is always inlined into its kernel. By default numba links a freshly compiled kernel to the helpers' own code,
# and a kernel from the cache to a copy of it that was optimised again and so rounds differently: the first process
# after an installation would differ from all later ones.
jit = njit(forceinline=True, **_OPTIONS)
# For the long functions of a kernel, each called in one place: inlined into the caller before either is compiled, so
# that LLVM processes them once and not once for every caller's caller. Attention compiles in half the time.
jit_once = njit(inline="always", **_OPTIONS)


def address_cast(target: Any) -> Any:
    """Return a function that converts an address to a pointer to numba's type `target`."""

    @intrinsic
    def cast(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(target)(types.int64), generate

    return cast


float32_at = address_cast(types.float32)
bfloat16_at = address_cast(types.uint16)  # the bits; `load` and `store` convert
int32_at = address_cast(types.int32)
int64_at = address_cast(types.int64)


def pointer_like(pointer: Any, address: Any) -> Any:
    """Return a pointer of another's type."""
    raise NotImplementedError("runs in compiled code only")


@overload(pointer_like)
def _pointer_like(pointer: Any, address: Any) -> Any:
    pointer_at = float32_at if pointer.dtype == types.float32 else bfloat16_at

    def cast(pointer: Any, address: Any) -> Any:
        return pointer_at(address)

    return cast


def _bit_cast(source: Any, target: Any, llvm_type: Any) -> Any:
    @intrinsic
    def cast(typing_context: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], llvm_type)

        return target(source), generate

    return cast


bits_to_float32 = _bit_cast(types.uint32, types.float32, ir.FloatType())
float32_to_bits = _bit_cast(types.float32, types.uint32, ir.IntType(32))
bits_to_float64 = _bit_cast(types.int64, types.float64, ir.DoubleType())


@intrinsic
def element(typing_context: Any, pointer: Any, index: Any) -> Any:
    """Return a pointer to element `index`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.gep(arguments[0], [arguments[1]])

    return pointer(pointer, types.int64), generate


@intrinsic
def fetch_add(typing_context: Any, counter: Any, amount: Any) -> Any:
    """Add `amount` to the int64 at `counter` atomically and return what was there before.

    Acquires and releases: what a thread wrote before is seen by one whose own call comes later.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.atomic_rmw("add", arguments[0], arguments[1], "acq_rel")

    return types.int64(types.CPointer(types.int64), types.int64), generate


@intrinsic
def atomic_load(typing_context: Any, counter: Any) -> Any:
    """Read the int64 at `counter`, and with it all that was written before it was stored."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(arguments[0], "acquire", 8)

    return types.int64(types.CPointer(types.int64)), generate


def load(pointer: Any, index: Any) -> Any:
    """Read element `index` as float32."""
    raise NotImplementedError("runs in compiled code only")


@overload(load)
def _load(pointer: Any, index: Any) -> Any:
    if pointer.dtype == types.float32:

        def load_float32(pointer: Any, index: Any) -> Any:
            return pointer[index]

        return load_float32

    def load_bfloat16(pointer: Any, index: Any) -> Any:
        return bits_to_float32(np.uint32(pointer[index]) << np.uint32(16))

    return load_bfloat16


def store(pointer: Any, index: Any, number: Any) -> None:
    """Write float32 `number` at `index`, rounded to nearest even if the memory is bf16."""
    raise NotImplementedError("runs in compiled code only")


@overload(store)
def _store(pointer: Any, index: Any, number: Any) -> Any:  # numba wants the same annotations on both levels
    if pointer.dtype == types.float32:

        def store_float32(pointer: Any, index: Any, number: Any) -> None:
            pointer[index] = np.float32(number)

        return store_float32

    def store_bfloat16(pointer: Any, index: Any, number: Any) -> None:
        bits = float32_to_bits(np.float32(number))
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        pointer[index] = np.uint16(np.uint32(0x7FC0) if is_nan else rounded)

    return store_bfloat16


@jit
def exp2(x: Any) -> Any:
    """Compute 2**x in float32 for vector code: exact to 2e-7 (relative) in [−126, 126], clamped outside.

    Range reduction to [−0.5, 0.5] and the degree-6 least-squares polynomial on Chebyshev nodes (1.9e-9 before
    rounding). A NaN stays NaN.
    """
    bounded = min(max(x, np.float32(-126.0)), np.float32(126.0)) if x == x else x  # noqa: PLR0124
    whole = np.int32(bounded + np.float32(127.5)) - np.int32(127)
    f = bounded - np.float32(whole)
    p = np.float32(1.5337577e-04)
    p = p * f + np.float32(1.3399860e-03)
    p = p * f + np.float32(9.6185198e-03)
    p = p * f + np.float32(5.5503290e-02)
    p = p * f + np.float32(2.4022646e-01)
    p = p * f + np.float32(6.9314718e-01)
    p = p * f + np.float32(1.0)
    return p * bits_to_float32(np.uint32(whole + np.int32(127)) << np.uint32(23))
