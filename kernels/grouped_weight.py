"""A weight as quantized files store it: whole numbers of 4 or 8 bits in groups of 32, and scales.

    w = scale · (number − zero)        or, with minima,        w = scale · number + minimum

Numbers without minima are signed, so zero is 8 of 4 bits and 128 of 8. A scale is that of 16, 32, 64, 128 or more
numbers of k, or of a whole row.

With minima `scale · number` must be exact in fp32: scales of fp16 are, and those of K-quants, whose 17 bits meet
numbers of at most 5. So the weight is rounded at most once, and a multiply-add gives its bits as well as a product and
a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.errors import require

GROUP = 32
"""Numbers of k that are stored together, and that activations are rounded with."""

FEWEST_SCALED = GROUP // 2
"""Numbers of k that share a scale, at least."""

BITS = (4, 8)
"""Sizes of a number."""

_ZERO_OF_8_BITS, _MOST_OF_8_BITS = 128, 127


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupedWeight:
    """A weight `[out, in]` in groups of 32 numbers along `in`."""

    numbers: Tensor
    """uint8 `[out, groups, 32]`, or `[out, groups, 16]` of 4 bits: low halves hold numbers 0 to 15, high ones 16 to 31.
    """
    scales: Tensor
    """fp16 or fp32 `[out, scales]`: one for 16 numbers, or 2, 4, 8 … times as many, or for all of a row."""
    minima: Tensor | None = None
    """Of the scales' dtype and shape; None if numbers are signed."""

    def __post_init__(self) -> None:
        """Raise `KernelInputError` if the parts do not fit each other."""
        shape, kind = tuple(self.numbers.shape), self.numbers.dtype
        is_grouped = kind == torch.uint8 and len(shape) == 3 and shape[1] > 0 and shape[2] in (GROUP // 2, GROUP)
        require(is_grouped, f"numbers are {kind} {shape}; give uint8 [out, groups, 16 or 32], at least one group")
        scales = tuple(self.scales.shape)
        is_shared = len(scales) == 2 and scales[0] == shape[0] and can_share(scales[1], shape[1] * GROUP)
        require(is_shared, f"numbers are {shape}, scales {scales}; give one for 16, 32, 64 … numbers, or for a row")
        fits = self.minima is None or (self.minima.shape == scales and self.minima.dtype == self.scales.dtype)
        require(fits, f"scales are {scales}; give minima of their shape and dtype, or none")
        is_float = self.scales.dtype in (torch.float16, torch.float32)
        require(is_float, f"scales are {self.scales.dtype}; give float16 or float32")

    @property
    def bits(self) -> int:
        """Size of a number."""
        return 8 if self.numbers.shape[2] == GROUP else 4

    @property
    def shape(self) -> tuple[int, int]:
        """The weight's `(out, in)`."""
        return self.numbers.shape[0], self.numbers.shape[1] * GROUP

    @property
    def layout(self) -> Layout:
        """What a kernel has to know of it."""
        return Layout(
            bits=self.bits,
            scale_bytes=self.scales.itemsize,
            has_minima=self.minima is not None,
            scaled=self.shape[1] // self.scales.shape[1],
        )

    def rows(self, change: Callable[[Tensor], Tensor]) -> GroupedWeight:
        """Return the weight whose rows are taken from this one by `change`, which is applied to each part."""
        minima = None if self.minima is None else change(self.minima)
        return replace(self, numbers=change(self.numbers), scales=change(self.scales), minima=minima)

    def to(self, device: torch.device) -> GroupedWeight:
        """Return the weight on a device, each part contiguous."""
        return self.rows(lambda part: part.to(device).contiguous())

    def widened(self) -> Tensor:
        """Return the weight in fp32, `[out, in]`: the twin of the compiled code."""
        numbers = self.numbers
        if self.bits == 4:
            numbers = torch.cat([numbers & 15, numbers >> 4], dim=2)
        shared = numbers.view(*self.scales.shape, self.layout.scaled).float()
        scaled = self.scales.float()[:, :, None] * (shared - self.layout.zero)
        whole = scaled if self.minima is None else scaled + self.minima.float()[:, :, None]
        return whole.flatten(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the numbers of a weight are stored; weights of one layout can be joined."""

    bits: int
    scale_bytes: int
    has_minima: bool
    scaled: int = GROUP
    """Numbers of k that share a scale."""

    @property
    def scale_dtype(self) -> torch.dtype:
        """The dtype of scales and minima."""
        return torch.float16 if self.scale_bytes == 2 else torch.float32

    def num_bytes(self, shape: tuple[int, int]) -> int:
        """Return the size of a weight `[out, in]`: its numbers, its scales and its minima."""
        count = shape[0] * shape[1]
        return count * self.bits // 8 + count // self.scaled * self.scale_bytes * (1 + self.has_minima)

    @property
    def zero(self) -> int:
        """The number that means 0."""
        return 0 if self.has_minima else 2 ** (self.bits - 1)

    def __str__(self) -> str:
        minima = " with minima" if self.has_minima else ""
        return f"{self.bits} bits{minima}, an fp{8 * self.scale_bytes} scale for {self.scaled}"


def can_share(num_scales: int, depth: int) -> bool:
    """Tell whether the numbers of a row can share so many scales equally."""
    if num_scales < 1 or depth % num_scales:
        return False
    times = depth // num_scales // FEWEST_SCALED
    return num_scales == 1 or (times * FEWEST_SCALED * num_scales == depth and times.bit_count() == 1)


def join(weights: Sequence[GroupedWeight]) -> GroupedWeight:
    """Return the weights' outputs side by side; all have one layout and depth."""
    first = weights[0]
    if len(weights) == 1:
        return first
    minima = [weight.minima for weight in weights if weight.minima is not None]
    return replace(
        first,
        numbers=torch.cat([weight.numbers for weight in weights]),
        scales=torch.cat([weight.scales for weight in weights]),
        minima=torch.cat(minima) if minima else None,
    )


def rounded(weight: Tensor) -> GroupedWeight:
    """Round a weight `[out, in]` to 8 bits without minima: a group's scale, of fp16, is its largest number / 127."""
    groups = weight.float().view(weight.shape[0], -1, GROUP)
    scales = (groups.abs().amax(2) / _MOST_OF_8_BITS).half()
    inverse = torch.where(scales == 0, 0.0, 1.0 / scales.float())
    numbers = (groups * inverse[:, :, None]).round().clamp(-_MOST_OF_8_BITS, _MOST_OF_8_BITS)
    return GroupedWeight(numbers=(numbers + _ZERO_OF_8_BITS).to(torch.uint8), scales=scales)


def filled(layout: Layout, shape: tuple[int, int]) -> GroupedWeight:
    """Return a weight of ones in a layout, to measure with."""
    width, groups = shape[0], shape[1] // GROUP
    numbers = torch.full((width, groups, GROUP * layout.bits // 8), 0x49, dtype=torch.uint8)
    scales = torch.ones((width, shape[1] // layout.scaled), dtype=layout.scale_dtype)
    minima = torch.ones_like(scales) if layout.has_minima else None
    return GroupedWeight(numbers=numbers, scales=scales, minima=minima)
