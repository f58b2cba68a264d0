"""A linear layer on a CPU whose weight stays packed: whole numbers of 4 or 8 bits in groups of 32.

    y = x · Wᵀ + b        accumulation fp32, rounded once on the way out, or not at all

Either each panel is widened in the cache and multiplied by a unit of cpu/gemm/, with the bits of a weight that was
widened when it was loaded; or, with `Product.INT8`, activations are rounded to 8 bits and numbers are multiplied as
they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.gemm.panels import pack_bias
from kernels.cpu.grouped import host as whole_numbers
from kernels.cpu.grouped import widened
from kernels.cpu.grouped.panels import pack
from kernels.errors import require
from kernels.grouped_weight import GROUP, GroupedWeight, Layout
from kernels.packed_linear import Product, best_product


def stays_packed(dtype: torch.dtype) -> bool:
    """Tell whether this CPU multiplies packed weights with activations of `dtype`; otherwise they must be widened."""
    return best_product(dtype).unit is not None


def takes_whole_numbers(layout: Layout) -> bool:
    """Tell whether `Product.INT8` multiplies weights of a layout: a group has one sum, and thus one scale."""
    return layout.scaled >= GROUP


class GroupedLinear:
    """One linear layer, like `PackedLinear`, over a packed copy of a grouped weight."""

    __slots__ = ("_bias", "_dtype", "_panels", "in_features", "out_features", "product")

    def __init__(
        self, weight: GroupedWeight, bias: Tensor | None, *, dtype: torch.dtype, product: Product | None = None
    ) -> None:
        """Take a weight and a bias `[out]`, or none, for activations of `dtype`; `stays_packed(dtype)` is required.

        `product` is one with a unit for `dtype`, or INT8; None takes the default unit.
        """
        self.out_features, self.in_features = weight.shape
        self.product, self._dtype = product or best_product(dtype), dtype
        is_packed = self.product.unit is not None or self.product is Product.INT8
        require(is_packed, f"product is {self.product}; give one that multiplies panels, or {Product.INT8}")
        has_sums = self.product is not Product.INT8 or takes_whole_numbers(weight.layout)
        require(has_sums, f"{Product.INT8} needs one scale for a group; this weight has one for {weight.layout.scaled}")
        fits = bias is None or tuple(bias.shape) == (self.out_features,)
        require(fits, f"bias does not fit a weight of {weight.shape}; give [out]")
        self._panels, self._bias = pack(weight), pack_bias(bias, self.out_features)

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
        if self.product.unit is None:
            return whole_numbers.linear(x, self._panels, self._bias, dtype=dtype)
        return widened.linear(x, self._panels, self._bias, unit=self.product.unit, dtype=dtype)

    @property
    def is_compiled(self) -> bool:
        """Tell whether calls are compiled kernels, which can be recorded."""
        return True

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the weight, without padding."""
        return self._panels.layout.num_bytes((self.out_features, self.in_features))

    @property
    def kind(self) -> object:
        """Return what the recorded calls depend on besides shapes."""
        return self.product, self._panels.layout

    @property
    def addresses(self) -> list[int]:
        """Return the addresses of everything that this layer holds."""
        return [self._panels.memory.data_ptr(), self._bias.data_ptr()]

    @property
    def has_rows(self) -> bool:
        """Tell whether `rows` can read the weight."""
        return True

    def rows(self, ids: Tensor) -> Tensor:
        """Return the weight's rows `ids` `[count]` int64, `[count, in]`: an embedding.

        An id outside [0, out) raises `KernelInputError`.
        """
        return self._panels.rows(ids).widened().to(self._dtype)
