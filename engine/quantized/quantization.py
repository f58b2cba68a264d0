"""How the quantized weights of a checkpoint are stored: values that quantization_config describes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class QuantMethod(StrEnum):
    """The quant_method of a quantization_config."""

    FP8 = "fp8"
    """8-bit floats, a scale for each block of a weight."""
    MXFP4 = "mxfp4"
    """4-bit floats, an exponent for every 32 of them."""
    GPTQ = "gptq"
    AWQ = "awq"
    COMPRESSED_TENSORS = "compressed-tensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """Layout of the scales of a weight of floats."""

    block: tuple[int, int | None] | None
    """Rows and columns of a weight that share one scale, all columns if that is None; None: the whole weight."""
    said_by: str
    """Source of the layout, for errors."""

    def __str__(self) -> str:
        if self.block is None:
            return f"one scale a weight ({self.said_by})"
        rows, columns = self.block
        if columns is None:
            return f"a scale for each row ({self.said_by})"
        return f"a scale for each block of {rows} × {columns} ({self.said_by})"


class Packing(StrEnum):
    """Where the whole numbers of a weight are in its tensors."""

    GPTQ = "gptq"
    """In int32 along the inputs; zeros are stored less 1."""
    GPTQ_V2 = "gptq_v2"
    """In int32 along the inputs; zeros as they are."""
    AWQ = "gemm"
    """In int32 along the outputs, the even ones first."""
    PACKED = "pack-quantized"
    """In int32 along the inputs, each plus half of its range."""
    BYTES = "int-quantized"
    """In int8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Integers:
    """Layout of a weight of whole numbers."""

    packing: Packing
    bits: int
    group: int | None
    """Numbers of a row that share a scale; None: all of them."""
    is_symmetric: bool
    """Whether every number that means 0 is half of the range."""
    is_single: bool = False
    """Whether the whole weight has one scale."""
    has_places: bool = False
    """Whether a tensor tells the scale of each number of a row, for which they need not be in order."""

    def __str__(self) -> str:
        of_rows = "a row" if self.group is None else f"{self.group} numbers"
        return f"{self.packing} of {self.bits} bits with a scale for {'a weight' if self.is_single else of_rows}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How the quantized weights of a checkpoint are stored."""

    method: QuantMethod
    stored: Scaled | Integers
