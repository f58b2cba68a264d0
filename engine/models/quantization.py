"""Quantization of a checkpoint's weights, in the formats that can be dequantized on loading.

Reads the quantization_config of config.json; independent of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from engine.errors import UnsupportedModelError


class QuantMethod(StrEnum):
    """Format of the quantized weights in a checkpoint's files."""

    FP8 = "fp8"
    """8-bit floats, a scale for each block of a weight."""
    MXFP4 = "mxfp4"
    """4-bit floats, an exponent for every 32 of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """Layout of a weight's scales."""

    block: tuple[int, int] | None
    """Rows and columns of a weight that share one scale; None: all of them."""
    said_by: str
    """Source of the layout, for errors."""

    def __str__(self) -> str:
        if self.block is None:
            return f"one scale a weight ({self.said_by})"
        rows, columns = self.block
        return f"a scale for each block of {rows} × {columns} ({self.said_by})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How the quantized weights of a checkpoint are stored."""

    method: QuantMethod
    scaled: Scaled


_FP8_BLOCK = (128, 128)
"""If the configuration has none, as in transformers."""

_MXFP4_SCALED = Scaled(block=(1, 32), said_by="mxfp4")

_MXFP4_MODEL = "gpt_oss"
"""Its experts are transposed in transformers' class; others' are not, and a square weight would not show it."""

_ALLOWED = (
    f"the engine dequantizes {QuantMethod.FP8}, and {QuantMethod.MXFP4} of {_MXFP4_MODEL}, when it loads the weights, "
    "and nothing else. Use such weights, or unquantized ones."
)


def read_quantization(config: Any, path: Path, *, model_type: str | None) -> Quantization:
    """Read a quantization_config. Raises UnsupportedModelError, which names its method and the supported ones."""
    if not isinstance(config, dict) or "quant_method" not in config:
        raise UnsupportedModelError(
            f"{path / 'config.json'} has the quantization_config {config!r} without a quant_method; {_ALLOWED}"
        )
    method = config["quant_method"]
    if method not in tuple(QuantMethod):
        raise UnsupportedModelError(f"{path} is quantized with {method!r} (quantization_config); {_ALLOWED}")
    if method == QuantMethod.MXFP4:
        if model_type != _MXFP4_MODEL:
            raise UnsupportedModelError(f"{path} is a {model_type} quantized with {method!r}; {_ALLOWED}")
        return Quantization(method=QuantMethod.MXFP4, scaled=_MXFP4_SCALED)
    return Quantization(method=QuantMethod.FP8, scaled=_scaled(config, path))


def _scaled(config: dict[str, Any], path: Path) -> Scaled:
    if "weight_block_size" not in config:
        return Scaled(block=_FP8_BLOCK, said_by="the default; config.json has no weight_block_size")
    return Scaled(block=_block(config["weight_block_size"], path), said_by="weight_block_size of config.json")


def _block(block: Any, path: Path) -> tuple[int, int] | None:
    if block is None:
        return None
    is_pair = isinstance(block, list | tuple) and len(block) == 2
    if not is_pair or any(type(size) is not int or size < 1 for size in block):
        raise UnsupportedModelError(
            f"{path / 'config.json'} has weight_block_size {block!r}; it must be two positive numbers, or null for one "
            "scale per weight."
        )
    return block[0], block[1]
