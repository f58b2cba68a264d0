"""Read ggml's blocks of whole numbers and their scales as they are: nothing is widened or rounded.

The layout of a block is that of ggml-common.h, `block_*`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.gguf.tensor_types import BLOCK_SIZES, TensorType
from kernels.grouped_weight import GROUP, GroupedWeight, Layout

Blocks = npt.NDArray[np.uint8]
"""`[blocks, bytes of a block]`."""

Bits = npt.NDArray[np.integer[Any]]

_PIECE_BLOCKS = 2**13
"""Blocks read at once: some MiB for a tensor of any size, which stay in the cache."""

_SIGNED_8, _SIGNED_4 = (Layout(bits=bits, scale_bytes=2, has_minima=False) for bits in (8, 4))
_POSITIVE_8, _POSITIVE_4 = (Layout(bits=bits, scale_bytes=2, has_minima=True) for bits in (8, 4))
_PARTS_8, _PARTS_4 = (Layout(bits=bits, scale_bytes=4, has_minima=True) for bits in (8, 4))
_SIGNED_PARTS = Layout(bits=8, scale_bytes=4, has_minima=False, scaled=16)
_POWERS = Layout(bits=8, scale_bytes=4, has_minima=False)

LAYOUTS: Mapping[TensorType, Layout] = MappingProxyType(
    {
        TensorType.Q8_0: _SIGNED_8,
        TensorType.Q4_0: _SIGNED_4,
        TensorType.Q4_1: _POSITIVE_4,
        TensorType.Q5_0: _SIGNED_8,
        TensorType.Q5_1: _POSITIVE_8,
        TensorType.Q4_K: _PARTS_4,
        TensorType.Q5_K: _PARTS_8,
        TensorType.Q6_K: _SIGNED_PARTS,
        TensorType.MXFP4: _POWERS,
    }
)
"""Every type of whole numbers. Scales of parts are products of two numbers, and powers of two have a wide range: fp32.

The floats of MXFP4 are halves of whole numbers up to 12, with a sign one too many for 4 bits.
"""


def read_grouped(stored: Blocks, kind: TensorType, shape: tuple[int, int]) -> GroupedWeight:
    """Return a weight `[out, in]` of one of `LAYOUTS` from its bytes."""
    layout, size = LAYOUTS[kind], BLOCK_SIZES[kind]
    blocks, (width, depth) = stored.reshape(-1, size.num_bytes), shape
    numbers = torch.empty((width, depth // GROUP, GROUP * layout.bits // 8), dtype=torch.uint8)
    scales, minima = (torch.empty((width, depth // layout.scaled), dtype=layout.scale_dtype) for _ in range(2))
    rows, each = numbers.view(len(blocks), -1), (scales.view(len(blocks), -1), minima.view(len(blocks), -1))
    for start in range(0, len(blocks), _PIECE_BLOCKS):
        piece = slice(start, start + _PIECE_BLOCKS)
        parts = _TO_PARTS[kind](blocks[piece])
        for target, part in zip((rows, *each), parts, strict=False):
            target[piece] = torch.from_numpy(part)
    return GroupedWeight(numbers=numbers, scales=scales, minima=minima if layout.has_minima else None)


Parts = tuple[Bits, npt.NDArray[Any]] | tuple[Bits, npt.NDArray[Any], npt.NDArray[Any]]
"""`[blocks, ...]`: numbers as `GroupedWeight` has them, scales, and minima if there are any."""


def _q8_0(blocks: Blocks) -> Parts:
    """A scale, and 32 signed bytes."""
    return blocks[:, 2:] ^ 0x80, halves(blocks, 0)


def _q4_0(blocks: Blocks) -> Parts:
    """A scale, and 32 times 4 bits less 8."""
    return np.ascontiguousarray(blocks[:, 2:]), halves(blocks, 0)


def _q4_1(blocks: Blocks) -> Parts:
    """A scale, a minimum, and 32 times 4 bits."""
    return np.ascontiguousarray(blocks[:, 4:]), halves(blocks, 0), halves(blocks, 2)


def _q5_0(blocks: Blocks) -> Parts:
    """A scale, the fifth bits of 32 values, and their four others; less 16."""
    values = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return values + np.uint8(128 - 16), halves(blocks, 0)


def _q5_1(blocks: Blocks) -> Parts:
    """A scale, a minimum, the fifth bits of 32 values, and their four others."""
    return _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8]), halves(blocks, 0), halves(blocks, 2)


def _q4_k(blocks: Blocks) -> Parts:
    """Two scales, 6 bits of scale and of minimum for each of 8 parts, and 32 times 4 bits in each part."""
    values = _paired_nibbles(blocks[:, 16:])
    packed = values[:, :, : GROUP // 2] | values[:, :, GROUP // 2 :] << 4
    return packed.reshape(len(blocks), -1), *_scales_of_parts(blocks)


def _q5_k(blocks: Blocks) -> Parts:
    """Like Q4_K, with the fifth bits of the parts in the bits of 32 bytes."""
    fifths = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1) << 4
    values = _paired_nibbles(blocks[:, 48:]) | fifths
    return values.reshape(len(blocks), -1), *_scales_of_parts(blocks)


def _q6_k(blocks: Blocks) -> Parts:
    """Low 4 and high 2 bits of 256 values less 32, a signed byte of scale for each 16 of them, and a scale of those.

    In each half of 128, the 64 bytes of low bits hold the values 0 to 63 below and 64 to 127 above, and the 32 bytes of
    high bits hold four quarters, lowest bits first.
    """
    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], np.uint8)[:, None] & 15
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    values = (low.reshape(-1, 256) | high.reshape(-1, 256) << 4) + np.uint8(128 - 32)
    return values, halves(blocks, 208).astype(np.float32) * blocks[:, 192:208].view(np.int8)


_DOUBLED_FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]) + 128
"""Twice the floats of 4 bits, by their bits."""


def _mxfp4(blocks: Blocks) -> Parts:
    """An exponent of two plus 127, and 32 floats of 4 bits."""
    scales = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    return _DOUBLED_FP4.astype(np.uint8)[_nibbles(blocks[:, 1:])], scales


def _scales_of_parts(blocks: Blocks) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the scales and minima `[blocks, 8]` of parts; both are in the first 16 bytes, minima to be subtracted."""
    scales, minima = _six_bits(blocks[:, 4:16])
    return halves(blocks, 0).astype(np.float32) * scales, -(halves(blocks, 2).astype(np.float32) * minima)


def _six_bits(packed: Blocks) -> tuple[Bits, Bits]:
    """Return 8 scales and 8 minima of 6 bits from 12 bytes.

    The first four of each are in the low bits of the bytes 0 to 3 and 4 to 7, the others' low halves in the bytes 8 to
    11, and their high two bits in the high bits of the first eight bytes.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return scales, minima


def halves(blocks: Blocks, at: int) -> npt.NDArray[np.float16]:
    """Return the fp16 at a byte of each block, `[blocks, 1]`."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16)


def _nibbles(packed: Blocks) -> Bits:
    """Return the low halves of the bytes, then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _paired_nibbles(packed: Blocks) -> Bits:
    """Return, for each 32 bytes, the low halves, then the high ones: `[blocks, 8, 32]`."""
    parts = packed.reshape(-1, 4, 1, 32) >> np.array([0, 4], np.uint8)[:, None] & 15
    return parts.reshape(-1, 8, 32)


def _fifth_bits(packed: Blocks) -> Bits:
    """Return bit i of 4 bytes, lowest first, as 16 or 0 at place i."""
    return np.unpackbits(packed, axis=1, bitorder="little") << 4


_TO_PARTS: Mapping[TensorType, Callable[[Blocks], Parts]] = MappingProxyType(
    {
        TensorType.Q8_0: _q8_0,
        TensorType.Q4_0: _q4_0,
        TensorType.Q4_1: _q4_1,
        TensorType.Q5_0: _q5_0,
        TensorType.Q5_1: _q5_1,
        TensorType.Q4_K: _q4_k,
        TensorType.Q5_K: _q5_k,
        TensorType.Q6_K: _q6_k,
        TensorType.MXFP4: _mxfp4,
    }
)


def widened(blocks: Blocks, kind: TensorType) -> Tensor:
    """Return the values of blocks of one of `LAYOUTS` in fp32, `[blocks, values of a block]`."""
    size = BLOCK_SIZES[kind]
    return read_grouped(blocks, kind, (len(blocks), size.num_values)).widened()
