"""LayerNorm, alone and fused with the residual addition, for encoders on a CPU.

    layer_norm(x)[i]              = (x[i] − mean(x[i])) / sqrt(variance(x[i]) + eps) · weight + bias
    add_layer_norm(x, residual)   = layer_norm(s), s   with   s = x + residual

Accumulation: fp32 throughout, the variance from the distances to the mean, rounded once on the way out. The fused op
normalises the sum *after* rounding it to x's dtype. Where nothing is compiled, torch's own `layer_norm` runs.
Source: Ba, Kiros and Hinton 2016 (arXiv 1607.06450), section 3.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu import layer_norm as cpu
from kernels.errors import require


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """Normalise the rows of `x` `[tokens, dim]` and return a new, contiguous tensor.

    The last axis of x is contiguous; weight and bias are fp32 `[dim]`, whatever x's dtype. Raises `KernelInputError`.
    """
    _check(x, weight, bias)
    if x.is_cpu and x.dtype in cpu.DTYPES:
        return cpu.layer_norm(x, weight, bias, eps)
    return functional.layer_norm(x.float(), weight.shape, weight, bias, eps).to(x.dtype)


def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Add `x` to the residual stream and normalise the sum; return `(normed, new_residual)`, both new tensors.

    Shapes and limits are those of `layer_norm`; residual is like x. Raises `KernelInputError`.
    """
    _check(x, weight, bias)
    is_alike = residual.shape == x.shape and residual.dtype == x.dtype and residual.stride(-1) == 1
    require(is_alike, f"residual is {residual.dtype} {tuple(residual.shape)}, x {x.dtype} {tuple(x.shape)}; give alike")
    if x.is_cpu and x.dtype in cpu.DTYPES:
        return cpu.add_layer_norm(x, residual, weight, bias, eps)
    total = (x.float() + residual.float()).to(x.dtype)
    return layer_norm(total, weight, bias, eps=eps), total


def _check(x: Tensor, weight: Tensor, bias: Tensor) -> None:
    require(x.dim() == 2 and x.stride(-1) == 1, f"x is {tuple(x.shape)}; give [tokens, dim], its last axis contiguous")
    for name, factors in (("weight", weight), ("bias", bias)):
        fits = factors.shape == x.shape[-1:] and factors.dtype == torch.float32 and factors.is_contiguous()
        require(fits, f"{name} is {factors.dtype} {tuple(factors.shape)}; give contiguous fp32 [{x.shape[-1]}]")
