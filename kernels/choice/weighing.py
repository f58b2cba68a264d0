"""Decide from times which product multiplies each weight.

A service spends its time on steps of few rows, which wait for weights to be read, and on prompts, which wait for the
arithmetic. A product is weighed by its time relative to the default's, over numbers of rows that represent both, each
weighted by its share of that time. Only a clearly faster product is chosen, so that noise has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kernels.grouped_weight import Layout
from kernels.packed_linear import Product

DECODE_SHARES = {1: 0.15, 8: 0.25, 32: 0.25}
PROMPT_SHARES = {1024: 0.35}
"""Shares of a service's time by the rows of a step; an output matrix sees no prompts, and uses the first shares."""

_CLEARLY = 0.9
"""A product is chosen below this share of the other's time. Probes of one machine differ by up to 0.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightShape:
    """The weights of one shape `[out, in]` in a model."""

    width: int
    """out."""
    depth: int
    """in."""
    count: int
    is_in_layers: bool
    """Whether all tokens of a prompt pass through them."""
    layout: Layout | None = None
    """How they stay packed; None if they are stored whole."""
    has_steps: bool = True
    """Whether they also multiply the few rows of a decode step; an encoder's multiply whole texts only."""

    @property
    def whole(self) -> WeightShape:
        """The same weights, stored whole."""
        return replace(self, layout=None)

    @property
    def shares(self) -> dict[int, float]:
        """The share of time of each number of rows."""
        if not self.has_steps:
            return PROMPT_SHARES
        return DECODE_SHARES | PROMPT_SHARES if self.is_in_layers else DECODE_SHARES


Times = Mapping[int, float]
"""Seconds per call, by rows."""

Choice = dict[WeightShape, Product]


def weigh(shape: WeightShape, times: Mapping[Product, Times]) -> Product:
    """Choose the product of a weight from the times of its products, the first of which is the default."""
    unasked, *others = times
    taken = {product: relative(times[product], times[unasked], shape.shares) for product in others}
    fastest = min(taken, key=taken.__getitem__, default=unasked)
    return fastest if taken.get(fastest, 1.0) <= _CLEARLY else unasked


def relative(times: Times, others: Times, shares: Mapping[int, float]) -> float:
    """Return a product's time relative to another's, weighted by shares of time."""
    return sum(share * times[rows] / others[rows] for rows, share in shares.items()) / sum(shares.values())
