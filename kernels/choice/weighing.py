"""Decide from times which product multiplies each weight. Measures nothing and keeps nothing.

A service spends its time on steps of few rows, which wait for weights to be read, and on prompts, which wait for the
arithmetic. A product is weighed by what it takes beside the one that is used unasked, over numbers of rows that stand
for both, each by its share of that time. It must be clearly faster to be chosen, so that noise chooses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernels.packed_linear import Product

DECODE_SHARES = {1: 0.15, 8: 0.25, 32: 0.25}
PROMPT_SHARES = {1024: 0.35}
"""Of the time of a service, by the rows of a step; an output matrix sees no prompts, and its shares are the first."""

_CLEARLY = 0.9
"""Of the other's time: what a product may take to be chosen instead. Probes of one machine differ by up to 0.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightShape:
    """The weights of one shape `[out, in]` in a model."""

    width: int
    """out."""
    depth: int
    """in."""
    count: int
    is_in_layers: bool
    """Whether all tokens of a prompt go through them."""

    @property
    def shares(self) -> dict[int, float]:
        """The share of time of each number of rows that they meet."""
        return DECODE_SHARES | PROMPT_SHARES if self.is_in_layers else DECODE_SHARES


Times = Mapping[int, float]
"""Seconds of a call, by its rows."""

Choice = dict[WeightShape, Product]


def weigh(shape: WeightShape, times: Mapping[Product, Times]) -> Product:
    """Choose for a weight from the times of its products, of which the first is the one used unasked."""
    unasked, *others = times
    taken = {product: relative(times[product], times[unasked], shape.shares) for product in others}
    fastest = min(taken, key=taken.__getitem__, default=unasked)
    return fastest if taken.get(fastest, 1.0) <= _CLEARLY else unasked


def relative(times: Times, others: Times, shares: Mapping[int, float]) -> float:
    """Return what a product takes of another's time, weighed by shares of time."""
    return sum(share * times[rows] / others[rows] for rows, share in shares.items()) / sum(shares.values())
