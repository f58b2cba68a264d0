"""Random blocks of each type, and a reading of their bits one by one."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

from engine.gguf.tensor_types import BLOCK_SIZES, TensorType

Number = np.float32


def half(block: bytes, at: int) -> Number:
    return Number(struct.unpack_from("<e", block, at)[0])


def bit(block: bytes, at: int, index: int) -> int:
    return block[at + index // 8] >> index % 8 & 1


def nibble(block: bytes, at: int, index: int) -> int:
    """Value `index` of 32: the first 16 are the low halves of 16 bytes."""
    return block[at + index] & 15 if index < 16 else block[at + index - 16] >> 4


def paired_nibble(block: bytes, at: int, index: int) -> int:
    """Value `index` of 256: 32 bytes hold 64 values, those of the low halves first."""
    group, place = divmod(index, 64)
    byte = block[at + 32 * group + place % 32]
    return byte & 15 if place < 32 else byte >> 4


def six_bits(block: bytes, at: int, part: int) -> tuple[int, int]:
    packed = block[at : at + 12]
    if part < 4:
        return packed[part] & 63, packed[part + 4] & 63
    high = packed[part - 4] >> 6, packed[part] >> 6
    return packed[part + 4] & 15 | high[0] << 4, packed[part + 4] >> 4 | high[1] << 4


def of_parts(block: bytes, index: int, value: int) -> Number:
    scale, minimum = six_bits(block, 4, index // 32)
    return half(block, 0) * Number(scale) * Number(value) - half(block, 2) * Number(minimum)


def q6_k(block: bytes, index: int) -> Number:
    section, place = divmod(index, 128)
    quarter, column = divmod(place, 32)
    byte = block[64 * section + place % 64]
    low = byte & 15 if place < 64 else byte >> 4
    high = block[128 + 32 * section + column] >> 2 * quarter & 3
    (scale,) = struct.unpack_from("b", block, 192 + index // 16)
    return half(block, 208) * Number(scale) * Number((low | high << 4) - 32)


def mxfp4(block: bytes, index: int) -> Number:
    """A float of a sign, two bits of exponent and one of mantissa, times a power of two."""
    code = nibble(block, 1, index)
    exponent, mantissa = code >> 1 & 3, code & 1
    size = 2.0 ** (exponent - 1) * (1 + mantissa / 2) if exponent else mantissa / 2
    return Number((-size if code & 8 else size) * 2.0 ** (block[0] - 127))


SLOWLY: dict[str, Callable[[bytes, int], Number]] = {
    "F32": lambda block, _: Number(struct.unpack("<f", block)[0]),
    "F16": lambda block, _: half(block, 0),
    "BF16": lambda block, _: Number(struct.unpack("<f", b"\0\0" + block)[0]),
    "Q8_0": lambda block, i: half(block, 0) * Number(struct.unpack_from("b", block, 2 + i)[0]),
    "Q4_0": lambda block, i: half(block, 0) * Number(nibble(block, 2, i) - 8),
    "Q4_1": lambda block, i: half(block, 0) * Number(nibble(block, 4, i)) + half(block, 2),
    "Q5_0": lambda block, i: half(block, 0) * Number((nibble(block, 6, i) | bit(block, 2, i) << 4) - 16),
    "Q5_1": lambda block, i: half(block, 0) * Number(nibble(block, 8, i) | bit(block, 4, i) << 4) + half(block, 2),
    "Q4_K": lambda block, i: of_parts(block, i, paired_nibble(block, 16, i)),
    "Q5_K": lambda block, i: of_parts(block, i, paired_nibble(block, 48, i) | (block[16 + i % 32] >> i // 32 & 1) << 4),
    "Q6_K": q6_k,
    "MXFP4": mxfp4,
}
SCALES = {"F32": [], "F16": [0], "BF16": [], "Q8_0": [0], "Q4_0": [0], "Q5_0": [0], "Q6_K": [208], "MXFP4": []}


def some_blocks(kind: str, num_blocks: int, *, seed: int) -> bytes:
    """Return random bytes in which the scales are numbers."""
    random = np.random.default_rng(seed)
    size = BLOCK_SIZES[TensorType(kind)].num_bytes
    blocks = random.integers(0, 256, (num_blocks, size), np.uint8)
    for at in SCALES.get(kind, [0, 2]):
        blocks[:, at : at + 2] = random.normal(size=(num_blocks, 1)).astype("<f2").view(np.uint8)
    if kind in ("F32", "BF16"):
        blocks[:, -1] &= 0xBF  # below the exponents of infinity and of what is no number
    if kind == "MXFP4":
        blocks[:, 0] = random.integers(0, 252, num_blocks)  # twelve times a larger power of two is infinite
    return blocks.tobytes()
