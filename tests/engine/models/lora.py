"""LoRA adapters of tiny models in PEFT's layout, and the models that they are merged into."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_PREFIX = "base_model.model."


def write_adapter(
    folder: Path, model: Path, *, seed: int, modules: Sequence[str] = ALL, rank: int = 4, **config: Any
) -> Path:
    """Write a random adapter of some of a model's weights."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, weight in load_file(model / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] in modules:
            out, depth = weight.shape
            tensors[f"{_PREFIX}{module}.lora_A.weight"] = torch.randn(rank, depth, generator=generator) / depth**0.5
            tensors[f"{_PREFIX}{module}.lora_B.weight"] = torch.randn(out, rank, generator=generator)
    return write_files(folder, tensors, r=rank, lora_alpha=2 * rank, target_modules=list(modules), **config)


def write_files(folder: Path, tensors: dict[str, Tensor], **config: Any) -> Path:
    """Write these files of an adapter."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    whole = {"peft_type": "LORA", "bias": "none", "use_dora": False, "modules_to_save": None, **config}
    (folder / "adapter_config.json").write_text(json.dumps(whole))
    return folder


def merge(folder: Path, model: Path, adapter: Path, *, scale: float) -> Path:
    """Write the model with an adapter's changes in its weights."""
    shutil.copytree(model, folder)
    weights, factors = load_file(model / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    for name, down in factors.items():
        module, is_down, _ = name.removeprefix(_PREFIX).partition(".lora_A.")
        if is_down:
            up = factors[name.replace(".lora_A.", ".lora_B.")]
            weights[f"{module}.weight"] += scale * (up.double() @ down.double()).float()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
