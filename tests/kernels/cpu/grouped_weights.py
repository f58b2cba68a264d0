"""Random weights in every layout, with scales that their products with numbers are exact for."""

from __future__ import annotations

import torch

from kernels.grouped_weight import GROUP, GroupedWeight, Layout

LAYOUTS = [
    Layout(bits=bits, scale_bytes=scale_bytes, has_minima=has_minima)
    for bits in (4, 8)
    for scale_bytes in (2, 4)
    for has_minima in (False, True)
]

SHARED = [
    Layout(bits=bits, scale_bytes=scale_bytes, has_minima=has_minima, scaled=scaled)
    for bits, scale_bytes, has_minima, scaled in (
        (4, 2, False, 64), (4, 4, True, 128), (8, 4, False, 128), (8, 4, True, 384), (4, 2, False, 384),
    )
]  # fmt: skip
"""Those with a scale for several groups, the last two of them for a row of 384."""

SPLIT = [
    Layout(bits=bits, scale_bytes=4, has_minima=has_minima, scaled=16)
    for bits in (4, 8)
    for has_minima in (False, True)
]
"""Those with two scales for a group."""


def random_weight(layout: Layout, width: int, depth: int) -> GroupedWeight:
    """Return a weight `[width, depth]`; scales of fp32 are those of fp16 times a number of 4 bits."""
    numbers = torch.randint(0, 256, (width, depth // GROUP, GROUP * layout.bits // 8), dtype=torch.uint8)
    scales = (torch.rand(width, depth // layout.scaled) * 0.01 + 0.001).half()
    minima = -7.3 * scales
    if layout.scale_bytes == 4:
        scales, minima = scales.float() * 11, minima.float() * 11
    return GroupedWeight(numbers=numbers, scales=scales, minima=minima if layout.has_minima else None)
