"""A linear layer for inference; on a CPU its weight is packed once for the unit that multiplies it.

    y = x · Wᵀ + b        accumulation fp32, rounded once on the way out, or not at all

A CPU uses the column panels of cpu/gemm/, with the given unit or the best available. One without any uses oneDNN's
blocked layout: `torch.ops.mkldnn._reorder_linear_weight` and `_linear_pointwise` are private operators of PyTorch
(Inductor's CPU backend is built on them). Each is tried once, with a product that is compared with `F.linear`, and
a layer falls back to `F.linear` if none is available and correct. choice/ decides between them for a model;
README.md has the timings.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from enum import StrEnum

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.gemm import host as gemm
from kernels.cpu.gemm import panels, sums
from kernels.cpu.gemm.host import Unit
from kernels.cpu.grouped import host as grouped
from kernels.errors import require

# The number of rows for which oneDNN lays out the weight. The layout serves every number of rows; hints of 1 to 128
# made no difference above the noise on AVX512-BF16.
_ROWS_HINT = 32


def padded_rows(rows: int) -> int:
    """Return the number of rows passed to oneDNN: exact up to 16, then one of eight sizes per doubling.

    oneDNN keeps about 0.5 MB for every number of rows it meets, and for every shape of weight. 1 to 1,600 rows of one
    192 x 576 weight in fp32 grew a process by 1,219 MB, in these sizes by 60 MB (AMD EPYC Zen 4, 2026-11-21).
    """
    step = 1 << max(0, rows.bit_length() - 4)
    return -(-rows // step) * step


class Product(StrEnum):
    """How a layer multiplies, and thus how it stores its weight."""

    PLAIN = "plain"
    """`F.linear` over the original weight."""
    ONEDNN = "onednn"
    """oneDNN in the weight's dtype."""
    DOTS = "dots"
    """Panels by bf16 dot products, AVX512-BF16."""
    MULTIPLY_ADDS = "multiply-adds"
    """Panels by fp32 multiply-adds; those of bf16 are widened in registers."""
    TILES = "tiles"
    """Panels by AMX tiles."""
    INT8 = "int8"
    """Grouped weights as whole numbers, by activations that are rounded to 8 bits (cpu/grouped/)."""

    @property
    def unit(self) -> Unit | None:
        """The unit that multiplies panels; None if the weight is stored otherwise."""
        return _UNITS.get(self)


_UNITS = {
    Product.TILES: Unit.TILES,
    Product.DOTS: Unit.DOTS,
    Product.MULTIPLY_ADDS: Unit.MULTIPLY_ADDS,
}
"""The default first."""


class PackedLinear:
    """One linear layer, packed for the product on its device.

    Packing copies the weight; on a CPU the layer keeps no reference to the original, so that its memory, or its file,
    is free once the caller drops it. Not for training: the result carries no gradient to the weight.
    """

    __slots__ = ("_bias", "_unit", "_weight", "in_features", "out_features", "product")

    def __init__(self, weight: Tensor, bias: Tensor | None, *, product: Product | None = None) -> None:
        """Take weight `[out, in]` and bias `[out]` of one dtype, or no bias; raise `KernelInputError` otherwise.

        `product` is one of `products_for(weight.dtype)` if the weight is on the CPU; None takes the first of them.
        """
        is_matrix = weight.dim() == 2 and weight.numel() > 0
        require(is_matrix, f"weight has shape {tuple(weight.shape)}; give [out, in], neither of them 0")
        self.out_features, self.in_features = weight.shape
        is_bias = bias is None or (bias.shape == weight.shape[:1] and bias.dtype == weight.dtype)
        require(is_bias, f"bias does not fit weight {weight.dtype} {tuple(weight.shape)}; give [out] of that dtype")
        require(product is not Product.INT8, f"product is {product}, which multiplies grouped weights; give another")
        self.product = (product or best_product(weight.dtype)) if weight.is_cpu else Product.PLAIN
        self._weight, self._bias, self._unit = weight, bias, self.product.unit
        if self._unit is not None:
            self._weight, self._bias = panels.pack(weight), panels.pack_bias(bias, self.out_features)
        elif self.product is Product.ONEDNN:
            self._weight = _pack(weight)
        elif weight.is_cpu:
            self._weight = weight.clone()

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply: `[tokens, in]` of the weight's dtype to a new `[tokens, out]`."""
        return self._multiply(x, self._weight.dtype)

    def unrounded(self, x: Tensor) -> Tensor:
        """Multiply, and return the sums in fp32 if panels are multiplied; otherwise they are rounded, too."""
        return self._multiply(x, torch.float32)

    def _multiply(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        if self.product is Product.PLAIN:
            return functional.linear(x, self._weight, self._bias)
        is_row = x.dim() == 2 and x.shape[1] == self.in_features and x.dtype == self._weight.dtype
        require(is_row, f"x is {x.dtype} {tuple(x.shape)}; give {self._weight.dtype} [tokens, {self.in_features}]")
        if x.shape[0] == 0:
            return x.new_empty((0, self.out_features))
        if self._unit is not None:
            assert self._bias is not None
            return gemm.linear(x, self._weight, self._bias, self.out_features, unit=self._unit, dtype=dtype)
        padding = padded_rows(x.shape[0]) - x.shape[0]
        wide = functional.pad(x, (0, 0, 0, padding)) if padding else x
        product: Tensor = torch.ops.mkldnn._linear_pointwise(wide, self._weight, self._bias, "none", [], "")
        return product[: x.shape[0]]

    @property
    def is_compiled(self) -> bool:
        """Tell whether calls are compiled kernels, which can be recorded."""
        return self._unit is not None

    @property
    def addresses(self) -> list[int]:
        """Return the addresses of everything that this layer holds."""
        return [tensor.data_ptr() for tensor in (self._weight, self._bias) if tensor is not None]

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the weight, without padding."""
        return self.out_features * self.in_features * self._weight.itemsize

    @property
    def kind(self) -> object:
        """Return what the recorded calls depend on besides shapes."""
        return self.product

    @property
    def has_rows(self) -> bool:
        """Tell whether `rows` can read the weight; oneDNN's layout is opaque."""
        return self._unit is not None or self.product is Product.PLAIN

    def rows(self, ids: Tensor) -> Tensor:
        """Return the weight's rows `ids` `[count]` int64, `[count, in]`: an embedding that is tied to this layer.

        On a CPU an id outside [0, out) raises `KernelInputError` (panels) or IndexError (plain).
        """
        assert self.has_rows
        if self._unit is not None:
            return panels.gather_rows(self._weight, ids, (self.out_features, self.in_features))
        return functional.embedding(ids, self._weight)


def products_for(dtype: torch.dtype) -> Iterator[Product]:
    """Yield how this CPU can multiply with a weight of `dtype`, the default first; each is tried on demand.

    oneDNN, which adds up in another order for some numbers of rows, and `F.linear` only if there is nothing else.
    Trying a product compiles it, so take no more than needed.
    """
    has_unit = False
    for product in _UNITS:
        if can_multiply(product, dtype):
            has_unit = True
            yield product
    if not has_unit:
        yield Product.ONEDNN if can_multiply(Product.ONEDNN, dtype) else Product.PLAIN


def can_multiply(product: Product, dtype: torch.dtype) -> bool:
    """Tell whether this CPU multiplies correctly with this product and `dtype`; tried once per process."""
    if product.unit is not None:
        return gemm.can_multiply(product.unit, dtype)
    if product is Product.INT8:
        return grouped.can_multiply()
    return product is Product.PLAIN or can_pack(dtype)


def best_product(dtype: torch.dtype) -> Product:
    """Return the default product for a weight of `dtype` on this CPU."""
    return next(products_for(dtype))


def has_cpu_products(dtype: torch.dtype) -> bool:
    """Tell whether this CPU multiplies matrices of `dtype` no slower than of fp32, so that the dtype is worthwhile."""
    if dtype == torch.float32:
        return True
    product = best_product(dtype)
    return sums.is_wide() if product is Product.MULTIPLY_ADDS else product is not Product.PLAIN


@functools.cache
def can_pack(dtype: torch.dtype) -> bool:
    """Tell whether oneDNN's packed products of `dtype` run here and agree with `F.linear`; tried once per process."""
    if dtype not in (torch.float32, torch.bfloat16) or not torch._C._has_mkldnn:
        return False
    x, weight = torch.linspace(-1, 1, 96).view(3, 32).to(dtype), torch.linspace(-1, 1, 512).view(16, 32).to(dtype)
    try:
        product = torch.ops.mkldnn._linear_pointwise(x, _pack(weight), None, "none", [], "")
    except (AttributeError, RuntimeError):  # another build of torch, or a CPU that oneDNN has no kernel for
        return False
    return torch.allclose(product.float(), functional.linear(x.float(), weight.float()), rtol=0.02, atol=0.02)


def _pack(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _ROWS_HINT)
