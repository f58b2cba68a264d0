"""A linear layer whose weight stays packed: whole numbers of 4 or 8 bits in groups of 32.

    y = x · Wᵀ + b        accumulation fp32, rounded once on the way out, or not at all

On a CPU each panel is widened in the cache and multiplied by a unit of cpu/gemm/, with the bits of a weight that was
widened when it was loaded; or, with `Product.INT8`, activations are rounded to 8 bits and numbers are multiplied as
they are. On a GPU the kernel of gpu/grouped_linear.py widens numbers in registers to x's dtype, with those bits, too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.gemm.panels import pack_bias
from kernels.cpu.grouped import host as whole_numbers
from kernels.cpu.grouped import widened
from kernels.cpu.grouped.panels import GroupedPanels, pack
from kernels.errors import require
from kernels.gpu.backend import HAS_TRITON
from kernels.gpu.grouped_linear import grouped_linear_triton
from kernels.grouped_weight import GROUP, GroupedWeight, Layout
from kernels.packed_linear import Product, best_product


def stays_packed(dtype: torch.dtype, device_type: str = "cpu") -> bool:
    """Tell whether a device multiplies packed weights with activations of `dtype`; otherwise they must be widened."""
    if device_type == "cpu":
        return best_product(dtype).unit is not None
    return device_type == "cuda" and HAS_TRITON


def takes_whole_numbers(layout: Layout) -> bool:
    """Tell whether `Product.INT8` multiplies weights of a layout: a group has one sum, and thus one scale."""
    return layout.scaled >= GROUP


def grouped_linear(x: Tensor, weight: GroupedWeight, bias: Tensor | None, *, dtype: torch.dtype) -> Tensor:
    """Multiply x `[tokens, in]` with a weight `[out, in]` as it is stored, to a new `[tokens, out]` of `dtype`.

    `bias` is `[out]` or None; all are on one device. On a GPU nothing is unpacked to memory; elsewhere the twin runs.
    Raises `KernelInputError`.
    """
    width, depth = weight.shape
    is_row = x.dim() == 2 and x.shape[1] == depth and x.stride(-1) == 1
    require(is_row, f"x is {tuple(x.shape)}; give [tokens, {depth}], its last axis contiguous")
    fits = bias is None or tuple(bias.shape) == (width,)
    require(fits, f"bias does not fit a weight of {weight.shape}; give [out]")
    run = grouped_linear_triton if x.is_cuda else grouped_linear_reference
    return run(x, weight, bias, dtype=dtype)


def grouped_linear_reference(x: Tensor, weight: GroupedWeight, bias: Tensor | None, *, dtype: torch.dtype) -> Tensor:
    """Compute `grouped_linear` in plain PyTorch."""
    product = x.float() @ weight.widened().to(x.dtype).float().T
    return (product if bias is None else product + bias.float()).to(dtype)


class GroupedLinear:
    """One linear layer, like `PackedLinear`, over a grouped weight: on a CPU over a packed copy of it."""

    __slots__ = ("_bias", "_dtype", "_weight", "in_features", "out_features", "product")

    def __init__(
        self, weight: GroupedWeight, bias: Tensor | None, *, dtype: torch.dtype, product: Product | None = None
    ) -> None:
        """Take a weight and a bias `[out]`, or none, for activations of `dtype`; `stays_packed` is required.

        On a CPU `product` is one with a unit for `dtype`, or INT8; None takes the default unit.
        """
        self.out_features, self.in_features = weight.shape
        self._dtype = dtype
        fits = bias is None or tuple(bias.shape) == (self.out_features,)
        require(fits, f"bias does not fit a weight of {weight.shape}; give [out]")
        self.product: Product | None = None
        self._weight: GroupedWeight | GroupedPanels = weight
        self._bias = bias
        if weight.numbers.is_cpu:
            self.product = product or best_product(dtype)
            is_packed = self.product.unit is not None or self.product is Product.INT8
            require(is_packed, f"product is {self.product}; give one that multiplies panels, or {Product.INT8}")
            scaled = weight.layout.scaled
            has_sums = self.product is not Product.INT8 or takes_whole_numbers(weight.layout)
            require(has_sums, f"{Product.INT8} needs one scale for a group; this weight has one for {scaled}")
            self._weight, self._bias = pack(weight), pack_bias(bias, self.out_features)

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply: `[tokens, in]` of the layer's dtype to a new `[tokens, out]`."""
        return self._multiply(x, self._dtype)

    def unrounded(self, x: Tensor) -> Tensor:
        """Multiply, and return the sums in fp32."""
        return self._multiply(x, torch.float32)

    def _multiply(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        is_row = x.dim() == 2 and x.shape[1] == self.in_features and x.dtype == self._dtype
        require(is_row, f"x is {x.dtype} {tuple(x.shape)}; give {self._dtype} [tokens, {self.in_features}]")
        if x.shape[0] == 0:
            return x.new_empty((0, self.out_features), dtype=dtype)
        if isinstance(self._weight, GroupedWeight):
            return grouped_linear(x, self._weight, self._bias, dtype=dtype)
        assert self._bias is not None
        assert self.product is not None
        if self.product.unit is None:
            return whole_numbers.linear(x, self._weight, self._bias, dtype=dtype)
        return widened.linear(x, self._weight, self._bias, unit=self.product.unit, dtype=dtype)

    @property
    def is_compiled(self) -> bool:
        """Tell whether calls are compiled kernels, which can be recorded."""
        return isinstance(self._weight, GroupedPanels)

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the weight, without padding."""
        return self._weight.layout.num_bytes((self.out_features, self.in_features))

    @property
    def kind(self) -> object:
        """Return what the recorded calls depend on besides shapes."""
        return self.product, self._weight.layout

    @property
    def addresses(self) -> list[int]:
        """Return the addresses of everything that this layer holds, on a CPU."""
        assert isinstance(self._weight, GroupedPanels)
        assert self._bias is not None
        return [self._weight.memory.data_ptr(), self._bias.data_ptr()]

    @property
    def has_rows(self) -> bool:
        """Tell whether `rows` can read the weight."""
        return True

    def rows(self, ids: Tensor) -> Tensor:
        """Return the weight's rows `ids` `[count]` int64, `[count, in]`: an embedding.

        On a CPU an id outside [0, out) raises `KernelInputError`.
        """
        if isinstance(self._weight, GroupedPanels):
            return self._weight.rows(ids).widened().to(self._dtype)
        return self._weight.rows(lambda part: part.index_select(0, ids)).widened().to(self._dtype)
