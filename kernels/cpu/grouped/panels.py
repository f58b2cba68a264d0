"""The packed form of a grouped weight: panels of 48 columns, in each the numbers, then the scales, then the minima.

    numbers  [groups][words][48 columns][4 bytes]        8 words a group of 8 bits, 4 of 4 bits
    scales   [scales][48 columns]                        fp16 or fp32; minima likewise

A word holds four numbers of k of one column. Of 4 bits, the low halves of the bytes of word j are the numbers 4j to
4j + 3 of the group, the high halves those 16 further: 16 words next to each other are the operand of one `vpdpbusd`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.gemm.panels import PANEL_COLUMNS
from kernels.cpu.runtime import huge_pages
from kernels.cpu.runtime import vectors as v
from kernels.errors import require
from kernels.grouped_weight import FEWEST_SCALED, GROUP, GroupedWeight, Layout

_LINE_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupedPanels:
    """A packed weight, and what it takes to read it."""

    memory: Tensor
    """uint8 `[panels, bytes]`."""
    width: int
    """out."""
    depth: int
    """in."""
    layout: Layout

    @property
    def words(self) -> tuple[int, ...]:
        """The words of a kernel's block, as `WORDS` declares them."""
        layout, num_scales = self.layout, self.depth // self.layout.scaled
        shift = _ONE_SCALE if num_scales == 1 else (layout.scaled // FEWEST_SCALED).bit_length() - 1
        return (
            self.memory.data_ptr(), self.memory.stride(0), self.depth // GROUP,
            num_scales, shift, layout.scale_bytes, int(layout.has_minima), layout.zero,
        )  # fmt: skip

    def rows(self, ids: Tensor) -> GroupedWeight:
        """Return rows `ids` `[count]`, integers, as a weight `[count, in]`.

        Raises `KernelInputError` for an id outside [0, out).
        """
        is_there = ids.numel() == 0 or bool((ids.min() >= 0) & (ids.max() < self.width))
        require(is_there, f"an id points out of range: ids must lie in [0, {self.width})")
        groups, layout = self.depth // GROUP, self.layout
        num_scales, dtype = self.depth // layout.scaled, layout.scale_dtype
        parts = self.memory.split_with_sizes(_sizes(self.depth, layout, self.memory.shape[1]), dim=1)
        numbers, scales, minima = parts[0], parts[1].view(dtype), parts[2].view(dtype)
        panel, column = ids // PANEL_COLUMNS, ids % PANEL_COLUMNS
        words = numbers.view(-1, groups, GROUP * layout.bits // 32, PANEL_COLUMNS, 4)
        return GroupedWeight(
            numbers=words[panel, :, :, column].flatten(2),
            scales=scales.view(-1, num_scales, PANEL_COLUMNS)[panel, :, column],
            minima=minima.view(-1, num_scales, PANEL_COLUMNS)[panel, :, column] if layout.has_minima else None,
        )


WORDS = "numbers* panel_bytes groups num_scales scale_shift scale_bytes has_minima zero"
"""The declaration of `GroupedPanels.words`: the numbers 16i to 16i + 15 have the scale i >> scale_shift."""

_ONE_SCALE = 62
"""The shift for one scale a row, whatever its length."""


def pack(weight: GroupedWeight) -> GroupedPanels:
    """Return a copy of a weight in panels, padded with columns of zeros."""
    if not v.has_feature("f16c") and weight.scales.dtype == torch.float16:
        weight = _with_wide_scales(weight)
    (width, depth), layout = weight.shape, weight.layout
    sizes = _sizes(depth, layout)
    panel_bytes = -(-sum(sizes) // _LINE_BYTES) * _LINE_BYTES
    memory = huge_pages.zeros((-(-width // PANEL_COLUMNS), panel_bytes), torch.uint8)
    numbers, scales, minima = memory[:, : sum(sizes)].split_with_sizes(sizes, dim=1)
    _fill(numbers, weight.numbers.view(torch.int32))
    _fill(scales, weight.scales[:, :, None])
    if weight.minima is not None:
        _fill(minima, weight.minima[:, :, None])
    return GroupedPanels(memory=memory, width=width, depth=depth, layout=layout)


def _sizes(depth: int, layout: Layout, panel_bytes: int | None = None) -> list[int]:
    """Return the sizes of a panel's numbers, scales and minima; and of the rest of `panel_bytes`."""
    numbers = depth * PANEL_COLUMNS * layout.bits // 8
    scales = depth // layout.scaled * PANEL_COLUMNS * layout.scale_bytes
    sizes = [numbers, scales, scales if layout.has_minima else 0]
    return sizes if panel_bytes is None else [*sizes, panel_bytes - sum(sizes)]


def _fill(panels: Tensor, rows: Tensor) -> None:
    """Write rows `[out, groups, items]` to the panels' `[groups, items, 48]`."""
    whole = rows.shape[0] // PANEL_COLUMNS
    _fill_whole(panels[:whole], rows[: whole * PANEL_COLUMNS])
    if rows.shape[0] % PANEL_COLUMNS:
        missing = -rows.shape[0] % PANEL_COLUMNS
        _fill_whole(panels[whole:], functional.pad(rows[whole * PANEL_COLUMNS :], (0, 0, 0, 0, 0, missing)))


def _fill_whole(panels: Tensor, rows: Tensor) -> None:
    count, (_, groups, items) = panels.shape[0], rows.shape
    # The view of a part of a panel is no whole number of elements from the next panel's, so one by one.
    for panel, part in zip(panels, rows.reshape(count, PANEL_COLUMNS, groups * items), strict=True):
        panel.view(rows.dtype).view(groups * items, PANEL_COLUMNS).copy_(part.T)


def _with_wide_scales(weight: GroupedWeight) -> GroupedWeight:
    """Return the weight with scales in fp32, for a CPU that does not widen fp16 itself."""
    minima = None if weight.minima is None else weight.minima.float()
    return GroupedWeight(numbers=weight.numbers, scales=weight.scales.float(), minima=minima)
