"""Read the quantization_config of config.json; independent of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from engine.errors import UnsupportedModelError
from engine.quantized.compressed_tensors import read_compressed_tensors
from engine.quantized.fields import Fields
from engine.quantized.quantization import Integers, Packing, Quantization, QuantMethod, Scaled

_FP8_BLOCK = (128, 128)
"""If the configuration has none, as in transformers."""

_MXFP4_SCALED = Scaled(block=(1, 32), said_by="mxfp4")

_MXFP4_MODEL = "gpt_oss"
"""Its experts are transposed in transformers' class; others' are not, and a square weight would not show it."""

_ALLOWED = (
    f"the engine reads {', '.join(method for method in QuantMethod if method is not QuantMethod.MXFP4)}, and "
    f"{QuantMethod.MXFP4} of {_MXFP4_MODEL}. Use such weights, or unquantized ones."
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
    if method == QuantMethod.MXFP4 and model_type != _MXFP4_MODEL:
        raise UnsupportedModelError(f"{path} is a {model_type} quantized with {method!r}; {_ALLOWED}")
    stored = _READERS[QuantMethod(method)](Fields(config=config, method=method, path=path))
    return Quantization(method=QuantMethod(method), stored=stored)


def _read_fp8(fields: Fields) -> Scaled:
    if "weight_block_size" not in fields.config:
        return Scaled(block=_FP8_BLOCK, said_by="the default; config.json has no weight_block_size")
    return Scaled(block=_block(fields), said_by="weight_block_size of config.json")


def _block(fields: Fields) -> tuple[int, int] | None:
    block = fields.config["weight_block_size"]
    if block is None:
        return None
    is_pair = isinstance(block, list | tuple) and len(block) == 2
    if not is_pair or any(type(size) is not int or size < 1 for size in block):
        raise fields.refused("weight_block_size", "it must be two positive numbers, or null for one scale per weight")
    return block[0], block[1]


def _read_gptq(fields: Fields) -> Integers:
    name = "checkpoint_format" if fields.config.get("checkpoint_format") else "format"
    packing = fields.one_of(name, [str(Packing.GPTQ), str(Packing.GPTQ_V2)], default=str(Packing.GPTQ))
    fields.one_of("pack_dtype", ["int32"], default="int32")
    rules = fields.config.get("dynamic") or {}  # with the sign modules are not quantized, else otherwise
    if not isinstance(rules, dict) or not all(rule.startswith("-:") for rule in rules):
        raise fields.refused("dynamic", "every quantized module must have the same bits and groups")
    return Integers(
        packing=Packing(packing),
        bits=fields.one_of("bits", [4, 8]),
        group=fields.group_size(),
        is_symmetric=fields.one_of("sym", [True, False], default=True),
        has_places=fields.one_of("desc_act", [True, False], default=False),
    )


def _read_awq(fields: Fields) -> Integers:
    name = next((name for name in ("version", "checkpoint_format", "format") if fields.config.get(name)), "version")
    version = fields.config.get(name, str(Packing.AWQ))
    if not isinstance(version, str) or version.lower() != Packing.AWQ:
        raise fields.refused(name, f"the engine reads {Packing.AWQ}. Use such weights")
    fields.one_of("zero_point", [True], default=True)
    bits = fields.one_of("bits" if "bits" in fields.config else "w_bit", [4])
    return Integers(packing=Packing.AWQ, bits=bits, group=fields.group_size(), is_symmetric=False)


_READERS: Mapping[QuantMethod, Callable[[Fields], Scaled | Integers]] = MappingProxyType(
    {
        QuantMethod.FP8: _read_fp8,
        QuantMethod.MXFP4: lambda _: _MXFP4_SCALED,
        QuantMethod.GPTQ: _read_gptq,
        QuantMethod.AWQ: _read_awq,
        QuantMethod.COMPRESSED_TENSORS: read_compressed_tensors,
    }
)
