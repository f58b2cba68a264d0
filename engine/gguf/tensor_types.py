"""ggml's tensor types by their number in a file, and the block sizes of those that can be read.

grouped.py has the layout of a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class TensorType(StrEnum):
    """The types that can be read."""

    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    Q8_0 = "Q8_0"
    Q4_0 = "Q4_0"
    Q4_1 = "Q4_1"
    Q5_0 = "Q5_0"
    Q5_1 = "Q5_1"
    Q4_K = "Q4_K"
    Q5_K = "Q5_K"
    Q6_K = "Q6_K"
    MXFP4 = "MXFP4"


@dataclass(frozen=True, slots=True)
class BlockSize:
    """The unit in which a type's values are stored."""

    num_values: int
    num_bytes: int


BLOCK_SIZES: Mapping[TensorType, BlockSize] = MappingProxyType(
    {
        TensorType.F32: BlockSize(1, 4),
        TensorType.F16: BlockSize(1, 2),
        TensorType.BF16: BlockSize(1, 2),
        TensorType.Q8_0: BlockSize(32, 2 + 32),  # scale, values
        TensorType.Q4_0: BlockSize(32, 2 + 16),
        TensorType.Q4_1: BlockSize(32, 2 + 2 + 16),  # scale, minimum, values
        TensorType.Q5_0: BlockSize(32, 2 + 4 + 16),  # scale, fifth bits, values
        TensorType.Q5_1: BlockSize(32, 2 + 2 + 4 + 16),
        TensorType.Q4_K: BlockSize(256, 2 + 2 + 12 + 128),  # scale, minimum, those of the parts, values
        TensorType.Q5_K: BlockSize(256, 2 + 2 + 12 + 32 + 128),
        TensorType.Q6_K: BlockSize(256, 128 + 64 + 16 + 2),  # low bits, high bits, scales of the parts, scale
        TensorType.MXFP4: BlockSize(32, 1 + 16),  # exponent, values
    }
)

NAMES: Mapping[int, str] = MappingProxyType(
    {
        0: "F32",
        1: "F16",
        2: "Q4_0",
        3: "Q4_1",
        6: "Q5_0",
        7: "Q5_1",
        8: "Q8_0",
        9: "Q8_1",
        10: "Q2_K",
        11: "Q3_K",
        12: "Q4_K",
        13: "Q5_K",
        14: "Q6_K",
        15: "Q8_K",
        16: "IQ2_XXS",
        17: "IQ2_XS",
        18: "IQ3_XXS",
        19: "IQ1_S",
        20: "IQ4_NL",
        21: "IQ3_S",
        22: "IQ2_S",
        23: "IQ4_XS",
        24: "I8",
        25: "I16",
        26: "I32",
        27: "I64",
        28: "F64",
        29: "IQ1_M",
        30: "BF16",
        34: "TQ1_0",
        35: "TQ2_0",
        39: "MXFP4",
        40: "NVFP4",
        41: "Q1_0",
        42: "Q2_0",
    }
)
"""Every type of ggml by its number, including those that cannot be read, for errors (ggml.h, `ggml_type`)."""
