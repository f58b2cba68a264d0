"""Tensors made from a seed on the device instead of read from files, to measure a model's speed without its files."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_STD = 0.02
"""Like the models' own initialisers; with a norm before every product, activations stay finite at any depth."""


class RandomWeights:
    """Replace a checkpoint that has every tensor: vectors are ones (norms) or zeros (biases), matrices normal.

    A tensor depends on the seed, its name, its shape and the kind of device, not on what was made before it.
    """

    def __init__(self, seed: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self._seed = seed
        self._dtype = dtype
        self._device = device

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return one tensor on the device."""
        if len(shape) == 1:
            value = 0.0 if name.endswith(".bias") else 1.0
            return torch.full(shape, value, dtype=self._dtype, device=self._device)
        digest = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
        generator = torch.Generator(self._device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        weight = torch.empty(shape, dtype=self._dtype, device=self._device)
        return weight.normal_(0.0, _STD, generator=generator)
