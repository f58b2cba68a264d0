"""Weights of whole numbers and scales, whatever their format: their values, and the form that kernels multiply."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.grouped_weight import GROUP, GroupedWeight, Layout, can_share

_SHORT_DTYPES = (torch.float16, torch.bfloat16)
"""Scales of at most 11 bits, whose products with numbers are exact in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scales:
    """All of a weight `[out, in]` but its numbers: it is scale · (number − zero)."""

    depth: int
    """in."""
    bits: int
    """Size of a number."""
    shared: int
    """Numbers of a row that share a scale; the last ones may be fewer."""
    scales: Tensor
    """fp16, bf16 or fp32 `[out, scales]`."""
    zeros: Tensor | None
    """uint8 `[out, scales]`; None: half of the numbers' range."""
    places: Tensor | None = None
    """Integers `[in]`, the scale of each number of a row; None: they share scales in their order."""

    @property
    def layout(self) -> Layout | None:
        """How the weight stays packed, with all its bits; None if it has to be widened."""
        num_scales = self.scales.shape[1]
        are_in_groups = self.depth % GROUP == 0 and self.depth == num_scales * self.shared
        is_exact = self.zeros is None or self.scales.dtype in _SHORT_DTYPES
        if self.places is not None or not are_in_groups or not can_share(num_scales, self.depth) or not is_exact:
            return None
        scale_bytes = 2 if self.zeros is None and self.scales.dtype == torch.float16 else 4
        return Layout(
            bits=self.bits, scale_bytes=scale_bytes, has_minima=self.zeros is not None, scaled=self.depth // num_scales
        )

    def packed(self, numbers: Tensor) -> GroupedWeight:
        """Return the weight of numbers `[out, in]`, uint8 from 0 on, in its layout."""
        layout = self.layout
        assert layout is not None, "it has to be widened"
        scales = self.scales.to(layout.scale_dtype)
        groups = numbers.reshape(numbers.shape[0], -1, GROUP)
        if self.bits == 4:
            groups = groups[:, :, : GROUP // 2] | groups[:, :, GROUP // 2 :] << 4
        return GroupedWeight(
            numbers=groups, scales=scales, minima=None if self.zeros is None else -(scales * self.zeros)
        )

    def widened(self, numbers: Tensor) -> Tensor:
        """Return the weight of numbers `[out, in]`, uint8 from 0 on, in fp32."""
        scales = self._spread(self.scales.float())
        zeros = 2 ** (self.bits - 1) if self.zeros is None else self._spread(self.zeros.float())
        return scales.mul_(numbers.float().sub_(zeros))

    def _spread(self, part: Tensor) -> Tensor:
        """Return what each number has of a part `[out, scales]`."""
        if self.places is not None:
            return part[:, self.places]
        return part.repeat_interleave(self.shared, dim=1)[:, : self.depth].contiguous()
