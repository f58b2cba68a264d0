"""A linear layer for inference; on a CPU its weight is packed once into the fastest layout. Knows no model.

    y = x · Wᵀ + b        accumulation fp32, rounded once on the way out

bf16 on a CPU with AVX512-BF16 takes the column panels of cpu/gemm.py. Other CPUs, and fp32, take oneDNN's blocked
layout: `torch.ops.mkldnn._reorder_linear_weight` and `_linear_pointwise` are private operators of PyTorch (Inductor's
CPU backend is built on them). Both are probed once, with a product that is compared with `F.linear`, and a layer falls
back to `F.linear` where neither is there or right. README.md has the timings.
"""

from __future__ import annotations

import functools
from enum import StrEnum

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu import gemm
from kernels.errors import require

# The number of rows that oneDNN lays the weight out for. The layout serves every number of rows; hints of 1 to 128 made
# no difference above the noise on AVX512-BF16.
_ROWS_HINT = 32


def padded_rows(rows: int) -> int:
    """Return the number of rows that oneDNN is given: exact up to 16, then one of eight sizes per doubling.

    oneDNN keeps about 0.5 MB for every number of rows it meets, and for every shape of weight. 1 to 1,600 rows of one
    192 x 576 weight in fp32 grew a process by 1,219 MB, in these sizes by 60 MB (AMD EPYC Zen 4, 2026-11-21).
    """
    step = 1 << max(0, rows.bit_length() - 4)
    return -(-rows // step) * step


class Layout(StrEnum):
    """How a layer holds its weight."""

    PLAIN = "plain"
    ONEDNN = "onednn"
    PANELS = "panels"


class PackedLinear:
    """Hold one linear layer in the layout that is fastest on its device.

    Packing copies the weight; the layer keeps no reference to the original, so that its memory is free once the caller
    drops it. Not for training: the result carries no gradient to the weight.
    """

    __slots__ = ("_bias", "_weight", "in_features", "layout", "out_features")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Take weight `[out, in]` and bias `[out]` of one dtype, or no bias; raise `KernelInputError` otherwise."""
        require(weight.dim() == 2, f"weight has shape {tuple(weight.shape)}; give [out, in]")
        self.out_features, self.in_features = weight.shape
        is_bias = bias is None or (bias.shape == weight.shape[:1] and bias.dtype == weight.dtype)
        require(is_bias, f"bias does not fit weight {weight.dtype} {tuple(weight.shape)}; give [out] of that dtype")
        self.layout = best_layout(weight)
        self._weight, self._bias = weight, bias
        if self.layout is Layout.PANELS:
            self._weight, self._bias = gemm.pack(weight), gemm.pack_bias(bias, self.out_features)
        elif self.layout is Layout.ONEDNN:
            self._weight = _pack(weight)

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply: `[tokens, in]` of the weight's dtype to a new `[tokens, out]`."""
        if self.layout is Layout.PLAIN:
            return functional.linear(x, self._weight, self._bias)
        is_row = x.dim() == 2 and x.shape[1] == self.in_features and x.dtype == self._weight.dtype
        require(is_row, f"x is {x.dtype} {tuple(x.shape)}; give {self._weight.dtype} [tokens, {self.in_features}]")
        if x.shape[0] == 0:
            return x.new_empty((0, self.out_features))
        if self.layout is Layout.PANELS:
            assert self._bias is not None
            return gemm.linear(x, self._weight, self._bias, self.out_features)
        padding = padded_rows(x.shape[0]) - x.shape[0]
        wide = functional.pad(x, (0, 0, 0, padding)) if padding else x
        product: Tensor = torch.ops.mkldnn._linear_pointwise(wide, self._weight, self._bias, "none", [], "")
        return product[: x.shape[0]]

    @property
    def addresses(self) -> list[int]:
        """List the addresses of all that this layer holds."""
        return [tensor.data_ptr() for tensor in (self._weight, self._bias) if tensor is not None]

    @property
    def has_rows(self) -> bool:
        """Say whether `rows` can read the weight; oneDNN's layout is its own secret."""
        return self.layout is not Layout.ONEDNN

    def rows(self, ids: Tensor) -> Tensor:
        """Return the weight's rows `ids` `[count]` int64, `[count, in]`: an embedding that is tied to this layer.

        On a CPU an id outside [0, out) raises `KernelInputError` (panels) or IndexError (plain).
        """
        assert self.has_rows
        if self.layout is Layout.PANELS:
            return gemm.gather_rows(self._weight, ids, (self.out_features, self.in_features))
        return functional.embedding(ids, self._weight)


def best_layout(weight: Tensor) -> Layout:
    """Name the fastest layout for a weight where it lies."""
    if not weight.is_cpu:
        return Layout.PLAIN
    if weight.dtype == torch.bfloat16 and gemm.can_multiply():
        return Layout.PANELS
    return Layout.ONEDNN if can_pack(weight.dtype) else Layout.PLAIN


def has_cpu_products(dtype: torch.dtype) -> bool:
    """Say whether this CPU multiplies matrices of `dtype` in a layout of their own, so that they are worth having."""
    return (dtype == torch.bfloat16 and gemm.can_multiply()) or can_pack(dtype)


@functools.cache
def can_pack(dtype: torch.dtype) -> bool:
    """Say whether oneDNN's packed products of `dtype` run here and agree with `F.linear`; tried once per process."""
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
