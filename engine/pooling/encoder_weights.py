"""Read an encoder's tensors, with or without a head around it."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from engine.errors import ModelLoadError
from engine.models.weights import Checkpoint
from engine.pooling.layers import Linear, Norm


def find_prefix(checkpoint: Checkpoint, path: Path, *, words: str, prefixes: tuple[str, ...]) -> str:
    """Return the prefix of an encoder's tensors, found by its tensor `words`. Raises ModelLoadError without it."""
    match = next((prefix for prefix in ("", *prefixes) if prefix + words in checkpoint), None)
    if match is None:
        raise ModelLoadError(f"{path} has no tensor {words}; it is no encoder's.")
    return match


class EncoderWeights:
    """Tensors by their names without the prefix that a model with a head adds."""

    def __init__(self, checkpoint: Checkpoint, *, prefix: str = "") -> None:
        self._checkpoint = checkpoint
        self._prefix = prefix

    def read(self, name: str, *shape: int) -> Tensor:
        """Return a copy of a tensor of this shape, independent of the file. Raises ModelLoadError."""
        return self._checkpoint.read(self._prefix + name, shape).clone()

    def linear(self, name: str, size: int, size_in: int, *, has_bias: bool = True) -> Linear:
        """Return a product from `size_in` numbers to `size`. Raises ModelLoadError."""
        bias = self.read(f"{name}.bias", size) if has_bias else None
        return Linear(weight=self.read(f"{name}.weight", size, size_in), bias=bias)

    def norm(self, name: str, size: int, *, eps: float, has_bias: bool = True) -> Norm:
        """Return a layer norm. Raises ModelLoadError."""
        bias = self.read(f"{name}.bias", size) if has_bias else None
        return Norm(weight=self.read(f"{name}.weight", size), bias=bias, eps=eps)
