"""A linear layer for inference; on a CPU its weight is packed once into oneDNN's blocked layout. Knows no model.

    y = x · Wᵀ + b        accumulation fp32, rounded once on the way out

`torch.ops.mkldnn._reorder_linear_weight` and `_linear_pointwise` are private operators of PyTorch (Inductor's CPU
backend is built on them). So they are probed once per dtype, with a product that is compared with `F.linear`, and a
layer falls back to `F.linear` where they are missing, refuse the dtype or are wrong. README.md has the timings.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional

from kernels.errors import require

# The number of rows that oneDNN lays the weight out for. The layout serves every number of rows; hints of 1 to 128 made
# no difference above the noise on AVX512-BF16.
_ROWS_HINT = 32


class PackedLinear:
    """Hold one linear layer in the layout that is fastest on its device.

    Packing copies the weight; the layer keeps no reference to the original, so that its memory is free once the caller
    drops it. Not for training: the result carries no gradient to the weight.
    """

    __slots__ = ("_bias", "_packed", "_weight", "in_features", "out_features")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Take weight `[out, in]` and bias `[out]` of one dtype, or no bias; raise `KernelInputError` otherwise."""
        require(weight.dim() == 2, f"weight has shape {tuple(weight.shape)}; give [out, in]")
        self.out_features, self.in_features = weight.shape
        is_bias = bias is None or (bias.shape == weight.shape[:1] and bias.dtype == weight.dtype)
        require(is_bias, f"bias does not fit weight {weight.dtype} {tuple(weight.shape)}; give [out] of that dtype")
        self._bias = bias
        self._packed = weight.is_cpu and can_pack(weight.dtype)
        self._weight = _pack(weight) if self._packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply: `[tokens, in]` of the weight's dtype to a new `[tokens, out]`."""
        if not self._packed:
            return functional.linear(x, self._weight, self._bias)
        if x.shape[0] == 0:
            return x.new_empty((0, self.out_features))
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")

    @property
    def is_packed(self) -> bool:
        """Say whether the weight is in oneDNN's layout."""
        return self._packed


@functools.cache
def can_pack(dtype: torch.dtype) -> bool:
    """Say whether packed products of `dtype` run here and agree with `F.linear`; tried once per process."""
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
