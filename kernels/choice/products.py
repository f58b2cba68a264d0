"""Choose the products of a model's weights: a kept choice, a new measurement, or the default if it hardly matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.choice.kept import keep
from kernels.choice.probe import time_products
from kernels.choice.weighing import Choice, WeightShape, weigh
from kernels.cpu.runtime.compilation import cache_directory
from kernels.packed_linear import Product, best_product, can_multiply, products_for

PROBE_SECONDS = 0.25
"""Thread time for all weights of a model together, without compiling the tried products."""

_FEWEST_WEIGHTS = 2**20
"""Smallest model that is measured; in a smaller one products do not dominate the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductChoice:
    """The product for each weight of a model, and the origin of the choice."""

    products: Choice
    origin: str
    """One word: unasked, measured or kept."""

    @property
    def is_in_float32(self) -> bool:
        """Whether all weights of the layers use fp32 multiply-adds; attention then does, too."""
        return {product for shape, product in self.products.items() if shape.is_in_layers} == {Product.MULTIPLY_ADDS}

    def of(self, width: int, depth: int) -> Product | None:
        """Return the product for a weight `[out, in]`; None leaves it to the layer."""
        matching = (product for shape, product in self.products.items() if (shape.width, shape.depth) == (width, depth))
        return next(matching, None)

    def __str__(self) -> str:
        """Return the products' names, with the shapes of weights if there are several."""
        names = dict.fromkeys(self.products.values())
        if len(names) <= 1:
            return f"{', '.join(names)} ({self.origin})"
        weights = ", ".join(f"{shape.depth} → {shape.width} {product}" for shape, product in self.products.items())
        return f"{weights} ({self.origin})"


def choose_products(shapes: Sequence[WeightShape], dtype: torch.dtype) -> ProductChoice:
    """Choose for a model's weights on this CPU. Shapes `[out, in]` are each given once.

    The choice is kept in the cache directory; without one, it is measured at each start.
    """
    num_weights = sum(shape.count * shape.width * shape.depth for shape in shapes)
    unasked = ProductChoice(products=dict.fromkeys(shapes, best_product(dtype)), origin="unasked")
    if dtype != torch.bfloat16 or num_weights < _FEWEST_WEIGHTS:
        return unasked
    folder = cache_directory()
    if folder is None:
        return ProductChoice(products=_measure(shapes), origin="measured")
    products, is_kept = keep(
        folder, shapes, lambda: _measure(shapes), is_usable=lambda product: can_multiply(product, dtype)
    )
    return ProductChoice(products=products, origin="kept" if is_kept else "measured")


def _measure(shapes: Sequence[WeightShape]) -> Choice:
    products = list(products_for(torch.bfloat16))
    if len(products) == 1:
        return dict.fromkeys(shapes, products[0])
    times = time_products(shapes, products, seconds=PROBE_SECONDS)
    return {shape: weigh(shape, times[shape]) for shape in shapes}
