"""Dequantize ggml's blocks to fp32 like its reference functions, vectorized over blocks.

The layout of a block is that of ggml-common.h, `block_*`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.gguf.container import GgufFile, TensorInfo
from engine.gguf.tensor_types import BLOCK_SIZES, TensorType

Blocks = npt.NDArray[np.uint8]
"""`[blocks, bytes of a block]`."""

Bits = npt.NDArray[np.integer[Any]]

Values = npt.NDArray[np.float32]
"""`[blocks, values of a block]`."""

_PIECE_VALUES = 2**18
"""Values dequantized at once: some MiB for a tensor of any size, which stay in the cache."""


def read_tensor(file: GgufFile, name: str) -> Tensor:
    """Return a tensor of the file on the CPU: as it is stored, in fp32 if it is quantized."""
    info = file.tensors[name]
    stored = file.stored(name)
    if info.kind in _STORED_DTYPES:
        return torch.from_numpy(stored.copy()).view(_STORED_DTYPES[info.kind]).view(info.shape)
    return torch.from_numpy(_dequantized(stored, info)).view(info.shape)


_STORED_DTYPES = {TensorType.F32: torch.float32, TensorType.F16: torch.float16, TensorType.BF16: torch.bfloat16}


def _dequantized(stored: npt.NDArray[np.uint8], info: TensorInfo) -> Values:
    size, to_values = BLOCK_SIZES[info.kind], _TO_VALUES[info.kind]
    blocks = stored.reshape(-1, size.num_bytes)
    values = np.empty(math.prod(info.shape), np.float32)
    rows, step = values.reshape(-1, size.num_values), _PIECE_VALUES // size.num_values
    for start in range(0, len(blocks), step):
        rows[start : start + step] = to_values(blocks[start : start + step])
    return values


def _q8_0(blocks: Blocks) -> Values:
    """A scale, and 32 signed bytes."""
    return _halves(blocks, 0) * blocks[:, 2:].view(np.int8)


def _q4_0(blocks: Blocks) -> Values:
    """A scale, and 32 times 4 bits less 8."""
    return _halves(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.int8) - 8)


def _q4_1(blocks: Blocks) -> Values:
    """A scale, a minimum, and 32 times 4 bits."""
    return _halves(blocks, 0) * _nibbles(blocks[:, 4:]) + _halves(blocks, 2)


def _q5_0(blocks: Blocks) -> Values:
    """A scale, the fifth bits of 32 values, and their four others; less 16."""
    values = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return _halves(blocks, 0) * (values.astype(np.int8) - 16)


def _q5_1(blocks: Blocks) -> Values:
    """A scale, a minimum, the fifth bits of 32 values, and their four others."""
    return _halves(blocks, 0) * (_nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])) + _halves(blocks, 2)


def _q4_k(blocks: Blocks) -> Values:
    """Two scales, 6 bits of scale and of minimum for each of 8 parts, and 32 times 4 bits in each part."""
    return _scaled_parts(blocks, _paired_nibbles(blocks[:, 16:]))


def _q5_k(blocks: Blocks) -> Values:
    """Like Q4_K, with the fifth bits of the parts in the bits of 32 bytes."""
    fifths = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1) << 4
    return _scaled_parts(blocks, _paired_nibbles(blocks[:, 48:]) | fifths)


def _q6_k(blocks: Blocks) -> Values:
    """Low 4 and high 2 bits of 256 values less 32, a signed byte of scale for each 16 of them, and a scale of those.

    In each half of 128, the 64 bytes of low bits hold the values 0 to 63 below and 64 to 127 above, and the 32 bytes of
    high bits hold four quarters, lowest bits first.
    """
    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], np.uint8)[:, None] & 15
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    values = (low.reshape(-1, 16, 16) | high.reshape(-1, 16, 16) << 4).astype(np.int8) - 32
    scales = _halves(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return (scales[:, :, None] * values).reshape(-1, 256)


def _scaled_parts(blocks: Blocks, values: Bits) -> Values:
    """Return values `[blocks, 8, 32]` times their part's scale less its minimum; both are in the first 16 bytes."""
    scales, minima = _six_bits(blocks[:, 4:16])
    scaled = (_halves(blocks, 0) * scales)[:, :, None] * values
    return (scaled - (_halves(blocks, 2) * minima)[:, :, None]).reshape(-1, 256)


def _six_bits(packed: Blocks) -> tuple[Bits, Bits]:
    """Return 8 scales and 8 minima of 6 bits from 12 bytes.

    The first four of each are in the low bits of the bytes 0 to 3 and 4 to 7, the others' low halves in the bytes 8 to
    11, and their high two bits in the high bits of the first eight bytes.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return scales, minima


def _halves(blocks: Blocks, at: int) -> Values:
    """Return the fp16 at a byte of each block as fp32, `[blocks, 1]`."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Blocks) -> Bits:
    """Return the low halves of the bytes, then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _paired_nibbles(packed: Blocks) -> Bits:
    """Return, for each 32 bytes, the low halves, then the high ones: `[blocks, 8, 32]`."""
    halves = packed.reshape(-1, 4, 1, 32) >> np.array([0, 4], np.uint8)[:, None] & 15
    return halves.reshape(-1, 8, 32)


def _fifth_bits(packed: Blocks) -> Bits:
    """Return bit i of 4 bytes, lowest first, as 16 or 0 at place i."""
    return np.unpackbits(packed, axis=1, bitorder="little") << 4


_TO_VALUES: dict[TensorType, Callable[[Blocks], Values]] = {
    TensorType.Q8_0: _q8_0,
    TensorType.Q4_0: _q4_0,
    TensorType.Q4_1: _q4_1,
    TensorType.Q5_0: _q5_0,
    TensorType.Q5_1: _q5_1,
    TensorType.Q4_K: _q4_k,
    TensorType.Q5_K: _q5_k,
    TensorType.Q6_K: _q6_k,
}
