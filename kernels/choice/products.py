"""Choose the products of a model's weights: a kept choice, a new measurement, or the default if it hardly matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kernels.choice.kept import keep
from kernels.choice.probe import time_products
from kernels.choice.weighing import Choice, WeightShape, weigh
from kernels.cpu.runtime.compilation import cache_directory
from kernels.grouped_linear import takes_whole_numbers
from kernels.grouped_weight import Layout
from kernels.packed_linear import Product, best_product, can_multiply, products_for

PROBE_SECONDS = 0.25
"""Thread time for all whole weights of a model together, and again for all packed ones, without compiling."""

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
        layers = {product for shape, product in self.products.items() if shape.is_in_layers and shape.layout is None}
        return layers == {Product.MULTIPLY_ADDS}

    def of(self, width: int, depth: int, layout: Layout | None = None) -> Product | None:
        """Return the product for a weight `[out, in]`; None leaves it to the layer."""
        asked = width, depth, layout
        matching = (
            product for shape, product in self.products.items() if (shape.width, shape.depth, shape.layout) == asked
        )
        return next(matching, None)

    def __str__(self) -> str:
        """Return the products' names, with the shapes of weights if there are several."""
        products = {shape: product for shape, product in self.products.items() if shape.count}
        names = dict.fromkeys(products.values())
        if len(names) <= 1:
            return f"{', '.join(names)} ({self.origin})"
        weights = ", ".join(f"{shape.depth} → {shape.width} {product}" for shape, product in products.items())
        return f"{weights} ({self.origin})"


def choose_products(shapes: Sequence[WeightShape], dtype: torch.dtype) -> ProductChoice:
    """Choose for a model's weights on this CPU. Shapes `[out, in]` are each given once.

    For packed weights the products of the same weights stored whole are chosen, too: one of these multiplies them, or,
    if they have decode steps, whole numbers. The choice is kept in the cache directory; without one, it is measured at
    each start.
    """
    shapes = [*shapes, *_whole_shapes(shapes)]
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
    whole = [shape for shape in shapes if shape.layout is None]
    choice = _measure_whole(whole)
    packed = [shape for shape in shapes if shape.layout is not None]
    units = {shape: _product_of(shape, choice) for shape in packed}
    if can_multiply(Product.INT8, torch.bfloat16):
        for shape, unit in units.items():
            if shape.layout is None or not shape.has_steps or not takes_whole_numbers(shape.layout):
                continue  # an encoder's vectors would be too far from those of its dtype: docs/adr/0064
            times = time_products([shape], [unit, Product.INT8], seconds=PROBE_SECONDS / len(packed))
            units[shape] = weigh(shape, times[shape])
    return {shape: (choice | units)[shape] for shape in shapes}


def _measure_whole(shapes: Sequence[WeightShape]) -> Choice:
    products = list(products_for(torch.bfloat16))
    if len(products) == 1:
        return dict.fromkeys(shapes, products[0])
    times = time_products(shapes, products, seconds=PROBE_SECONDS)
    return {shape: weigh(shape, times[shape]) for shape in shapes}


def _whole_shapes(shapes: Sequence[WeightShape]) -> list[WeightShape]:
    """Return the shapes of packed weights as whole ones that the model does not have."""
    known = {(shape.width, shape.depth, shape.is_in_layers) for shape in shapes if shape.layout is None}
    added = dict.fromkeys(replace(shape.whole, count=0) for shape in shapes if shape.layout is not None)
    return [shape for shape in added if (shape.width, shape.depth, shape.is_in_layers) not in known]


def _product_of(packed: WeightShape, choice: Choice) -> Product:
    """Return the product of the same weights stored whole."""
    place = packed.width, packed.depth, packed.is_in_layers
    return next(product for shape, product in choice.items() if (shape.width, shape.depth, shape.is_in_layers) == place)
