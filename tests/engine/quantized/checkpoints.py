"""Tiny models quantized in their place, and transformers' models of the weights that the files stand for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.engine.quantized.formats import as_awq, as_bytes, as_gptq, as_packed, quantized


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format and how it is told of; `group` is None for a scale a row."""

    quantization_config: Mapping[str, Any]
    bits: int = 4
    group: int | None = None
    is_symmetric: bool = True
    dtype: torch.dtype = torch.float16
    is_packed: bool = True

    def written(self, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return the tensors of a weight by the last word of their names, and its values."""
        if self._method == "compressed-tensors" and self.quantization_config["format"] == "float-quantized":
            return self._floats(weight)
        numbers = quantized(weight, bits=self.bits, group=self.group, is_symmetric=self.is_symmetric, dtype=self.dtype)
        if self._method == "gptq":
            return as_gptq(numbers), numbers.values
        if self._method == "awq":
            return as_awq(numbers), numbers.values
        write = as_packed if self.quantization_config["format"] == "pack-quantized" else as_bytes
        return write(numbers, is_symmetric=self.is_symmetric), numbers.values

    def _floats(self, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        (group,) = self.quantization_config["config_groups"].values()
        rows, columns = {
            "tensor": weight.shape, "channel": (1, weight.shape[1]), "block": (128, 128),
        }[group["weights"]["strategy"]]  # fmt: skip
        whole = torch.nn.functional.pad(weight.float(), (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows))
        blocks = whole.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))
        scales = (blocks.abs().amax((1, 3)) / 448).to(self.dtype)
        spread = (
            scales.float()
            .repeat_interleave(rows, 0)
            .repeat_interleave(columns, 1)[: weight.shape[0], : weight.shape[1]]
        )
        floats = (weight.float() / spread).to(torch.float8_e4m3fn)
        stored = scales.flatten() if group["weights"]["strategy"] == "tensor" else scales
        return {"weight": floats, "weight_scale": stored}, floats.float() * spread

    @property
    def _method(self) -> str:
        method: str = self.quantization_config["quant_method"]
        return method


def _compressed(stored_as: str, **weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    return {"quant_method": "compressed-tensors", "format": stored_as, "config_groups": groups, "ignore": ["lm_head"]}


_GPTQ = {"quant_method": "gptq", "group_size": 64, "desc_act": False}
_PACKED = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64}

FORMATS: Mapping[str, Format] = {
    "gptq-4": Format(quantization_config={**_GPTQ, "bits": 4, "sym": True}, group=64),
    "gptq-8-asymmetric": Format(
        quantization_config={**_GPTQ, "bits": 8, "sym": False}, bits=8, group=64, is_symmetric=False
    ),
    "awq": Format(
        quantization_config={"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"},
        group=32,
        is_symmetric=False,
    ),
    "w4a16": Format(quantization_config=_compressed("pack-quantized", **_PACKED), group=64, dtype=torch.bfloat16),
    "w4a16-asymmetric": Format(
        quantization_config=_compressed("pack-quantized", **_PACKED, symmetric=False),
        group=64,
        dtype=torch.bfloat16,
        is_symmetric=False,
    ),
    "w8a8": Format(
        quantization_config=_compressed("int-quantized", num_bits=8, type="int", strategy="channel"),
        bits=8,
        dtype=torch.bfloat16,
    ),
    "fp8-tensor": Format(
        quantization_config=_compressed("float-quantized", num_bits=8, type="float", strategy="tensor"),
        dtype=torch.bfloat16,
        is_packed=False,
    ),
    "fp8-channel": Format(
        quantization_config=_compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
        dtype=torch.bfloat16,
        is_packed=False,
    ),
    "fp8-block": Format(
        quantization_config=_compressed(
            "float-quantized", num_bits=8, type="float", strategy="block", block_structure=[128, 128]
        ),
        dtype=torch.float32,
        is_packed=False,
    ),
}


def quantize(path: Path, stored_as: Format) -> Any:
    """Quantize the projections of a model's files in their place; return transformers' model of what they stand for."""
    tensors = load_file(path / "model.safetensors")
    whole, config = dict(tensors), json.loads((path / "config.json").read_text())
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        parts, values = stored_as.written(tensors.pop(name))
        module = name.removesuffix("weight")
        tensors |= {f"{module}{part}": tensor.contiguous() for part, tensor in parts.items()}
        whole[name] = values
    twin = path / "twin"
    twin.mkdir(exist_ok=True)
    save_file(whole, twin / "model.safetensors", {"format": "pt"})
    (twin / "config.json").write_text(json.dumps(config))
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    (path / "config.json").write_text(
        json.dumps({**config, "quantization_config": dict(stored_as.quantization_config)})
    )
    return AutoModelForCausalLM.from_pretrained(twin, dtype=torch.float32, attn_implementation="eager")
