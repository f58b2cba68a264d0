"""Tiny models whose arithmetic breaks: for some tokens, for all, or from some layer on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.engine.tiny_models import TinyModel

POISON = 255
"""A token whose embedding is no number in a `poisoned` model; the tiny models' own prompts may have it."""


def changed(model: TinyModel, path: Path, change: Callable[[dict[str, Tensor]], None]) -> TinyModel:
    """Return a copy of a model with other weights."""
    shutil.copytree(model.path, path)
    file = path / "model.safetensors"
    weights = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})
    return TinyModel(path, model.prompts, model.max_tokens, model.expected)


def poisoned(model: TinyModel, path: Path, *, number: float = torch.nan) -> TinyModel:
    """Return a model that breaks for whoever reads POISON."""

    def poison(weights: dict[str, Tensor]) -> None:
        weights["model.embed_tokens.weight"][POISON] = number

    return changed(model, path, poison)


def overflowing(model: TinyModel, path: Path) -> TinyModel:
    """Return a model whose last layer adds what no float can hold, for every token."""

    def overflow(weights: dict[str, Tensor]) -> None:
        last = max(name for name in weights if name.endswith("down_proj.weight"))
        weights[last].fill_(torch.finfo(torch.float32).max)

    return changed(model, path, overflow)
