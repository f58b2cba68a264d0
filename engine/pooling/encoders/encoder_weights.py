"""Read an encoder's tensors, with or without a head around it, as the layers that multiply them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import ModelLoadError, UnsupportedModelError
from engine.models.weights import Checkpoint
from engine.pooling.encoders.dtypes import Dtype
from engine.pooling.encoders.layers import Linear, Norm
from kernels.choice.products import ProductChoice, choose_products
from kernels.choice.weighing import WeightShape
from kernels.grouped_linear import GroupedLinear, stays_packed
from kernels.grouped_weight import GROUP, GroupedWeight, rounded
from kernels.packed_linear import PackedLinear


def find_prefix(checkpoint: Checkpoint, path: Path, *, words: str, prefixes: tuple[str, ...]) -> str:
    """Return the prefix of an encoder's tensors, found by its tensor `words`. Raises ModelLoadError without it."""
    match = next((prefix for prefix in ("", *prefixes) if prefix + words in checkpoint), None)
    if match is None:
        raise ModelLoadError(f"{path} has no tensor {words}; it is no encoder's.")
    return match


def choose_for(shapes: Iterable[tuple[int, int]], dtype: Dtype, path: Path) -> ProductChoice:
    """Choose the products of an encoder's weights `[out, in]`, those of all layers.

    Weights of int8 have those of bf16: as whole numbers, with rows rounded too, vectors would be too far from those of
    float32 (docs/adr/0064). Raises UnsupportedModelError if weights do not have whole groups of int8.
    """
    counts = Counter(shapes)
    broken = next((depth for _, depth in counts if dtype is Dtype.INT8 and depth % GROUP), None)
    if broken is not None:
        raise UnsupportedModelError(
            f"{path}: int8 takes weights in groups of {GROUP}, and some here have {broken} inputs; use bfloat16."
        )
    weights = [
        WeightShape(width=width, depth=depth, count=count, is_in_layers=True, has_steps=False)
        for (width, depth), count in counts.items()
    ]
    return choose_products(weights, dtype.of_rows)


class EncoderWeights:
    """Tensors by their names without the prefix that a model with a head adds."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        prefix: str = "",
        dtype: Dtype = Dtype.FLOAT32,
        products: ProductChoice | None = None,
    ) -> None:
        """Take a checkpoint of fp32; without `products` each weight has its default product."""
        self._checkpoint, self._prefix, self._dtype, self._products = checkpoint, prefix, dtype, products

    @property
    def is_in_float32(self) -> bool:
        """Whether this CPU multiplies bf16 faster in fp32, as measured for these weights."""
        return self._products is not None and self._products.is_in_float32

    def read(self, name: str, *shape: int) -> Tensor:
        """Return a copy of a tensor of this shape in fp32, independent of the file. Raises ModelLoadError."""
        return self._checkpoint.read(self._prefix + name, shape).clone()

    def table(self, name: str, *shape: int) -> Tensor:
        """Return a copy of an embedding in the dtype of rows. Raises ModelLoadError."""
        return self._checkpoint.read(self._prefix + name, shape).to(self._dtype.of_rows, copy=True)

    def linear(self, names: str | Sequence[str], size: int, size_in: int, *, has_bias: bool = True) -> Linear:
        """Return a product from `size_in` numbers to `size`, of one name or of several with an equal share each.

        Raises ModelLoadError.
        """
        parts = [names] if isinstance(names, str) else names
        own = size // len(parts)
        weight = torch.cat([self.read(f"{name}.weight", own, size_in) for name in parts])
        bias = torch.cat([self.read(f"{name}.bias", own) for name in parts]) if has_bias else None
        if self._dtype is Dtype.INT8:
            return self._grouped(rounded(weight), bias)
        return self._whole(weight, bias)

    def _grouped(self, weight: GroupedWeight, bias: Tensor | None) -> Linear:
        if not stays_packed(self._dtype.of_rows):
            return self._whole(weight.widened(), bias)
        product = None if self._products is None else self._products.of(*weight.shape)
        return GroupedLinear(weight, bias, dtype=self._dtype.of_rows, product=product)

    def _whole(self, weight: Tensor, bias: Tensor | None) -> Linear:
        dtype, (width, depth) = self._dtype.of_rows, weight.shape
        product = None if self._products is None else self._products.of(width, depth)
        return PackedLinear(weight.to(dtype), None if bias is None else bias.to(dtype), product=product)

    def norm(self, name: str, size: int, *, eps: float, has_bias: bool = True) -> Norm:
        """Return a layer norm. Raises ModelLoadError."""
        bias = self.read(f"{name}.bias", size) if has_bias else torch.zeros(size)
        return Norm(weight=self.read(f"{name}.weight", size), bias=bias, eps=eps)
