"""Time the products of a model's weights on this CPU, in a few hundred milliseconds.

The products of a shape alternate, and the shortest time of each counts, so that other load affects them equally. They
run on one thread and are measured in its CPU time: of two threads on a busy machine one would measure its wait for the
other. A prompt is timed with fewer rows, and a wide weight by some of its columns: the same kind of work, only less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from kernels.choice.weighing import Times, WeightShape
from kernels.grouped_linear import GroupedLinear
from kernels.grouped_weight import filled
from kernels.packed_linear import PackedLinear, Product

_ELEMENTS = 2**19
"""Size of a timed weight: 1 MB in bf16."""

_PROMPT_ROWS = 128
"""Rows that represent those of a prompt's step."""

_CALLS = {1: 3, 8: 3, 32: 2}
"""Calls per turn by rows, one otherwise; short ones need more to hit a quiet moment."""

_TURNS = 4
_FEWEST_TURNS = 2
_HOPELESS = 1.6
"""A product that takes this many times the fastest's time in the first turn, at every number of rows, is dropped."""

_FILL = 0.5


def time_products(
    shapes: Sequence[WeightShape],
    products: Sequence[Product],
    *,
    seconds: float,
    clock: Callable[[], float] = time.thread_time,
) -> dict[WeightShape, dict[Product, Times]]:
    """Return the seconds of a call of each product for each shape, by rows; stop after about `seconds` for all.

    Times are comparable only for one shape and one number of rows.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        start = clock()
        return {
            shape: _Timed(shape, products, clock).run(start + seconds * (index + 1) / len(shapes))
            for index, shape in enumerate(shapes)
        }
    finally:
        torch.set_num_threads(num_threads)


class _Timed:
    """Time the products of one shape."""

    def __init__(self, shape: WeightShape, products: Iterable[Product], clock: Callable[[], float]) -> None:
        self._clock = clock
        width = min(shape.width, max(96, _ELEMENTS // shape.depth // 48 * 48))
        self._layers = {product: _layer(shape, width, product) for product in products}
        self._x = {
            rows: torch.full((min(rows, _PROMPT_ROWS), shape.depth), _FILL, dtype=torch.bfloat16)
            for rows in shape.shares
        }
        self._best: dict[Product, dict[int, float]] = {
            product: dict.fromkeys(self._x, float("inf")) for product in self._layers
        }

    def run(self, end: float) -> dict[Product, Times]:
        for layer in self._layers.values():  # first touch of the memory
            layer(next(iter(self._x.values())))
        for turn in range(_TURNS):
            if turn >= _FEWEST_TURNS and self._clock() > end:
                break
            self._turn()
            if turn == 0:
                self._drop_hopeless()
        return dict(self._best)

    def _turn(self) -> None:
        for rows, x in self._x.items():
            for _ in range(_CALLS.get(rows, 1)):
                for product, layer in self._layers.items():
                    best = self._best[product]
                    best[rows] = min(best[rows], _seconds(layer, x, self._clock))

    def _drop_hopeless(self) -> None:
        """Drop products that are slow at all numbers of rows, except the first: others are compared with it."""
        fastest = {rows: min(times[rows] for times in self._best.values()) for rows in self._x}
        for product in list(self._layers)[1:]:
            if all(self._best[product][rows] > _HOPELESS * fastest[rows] for rows in self._x):
                del self._layers[product]


def _layer(shape: WeightShape, width: int, product: Product) -> PackedLinear | GroupedLinear:
    if shape.layout is None:
        weight = torch.full((width, shape.depth), _FILL, dtype=torch.bfloat16)
        return PackedLinear(weight, None, product=product)
    return GroupedLinear(filled(shape.layout, (width, shape.depth)), None, dtype=torch.bfloat16, product=product)


def _seconds(layer: PackedLinear | GroupedLinear, x: Tensor, clock: Callable[[], float]) -> float:
    start = clock()
    layer(x)
    return clock() - start
