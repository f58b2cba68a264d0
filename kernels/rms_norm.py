"""RMSNorm, alone and fused with the residual addition. Knows nothing of layers or models.

    rms_norm(x)[i]              = x[i] / sqrt(mean(x[i]²) + eps) · weight
    add_rms_norm(x, residual)   = rms_norm(s), s   with   s = x + residual

Accumulation: fp32 throughout, rounded once on the way out. The fused op normalises the sum *after* rounding it to the
residual's dtype, so that fused and unfused models agree. Source: Zhang and Sennrich 2019 (arXiv 1910.07467), section 4.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Normalise the last axis of `x`.

    Shapes: x `[..., dim]`, weight `[dim]`; the result has x's shape and dtype.
    """
    return rms_norm_reference(x, weight, eps=eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Add `x` to the residual stream and normalise the sum; return `(normed, new_residual)`, both new tensors.

    Shapes: x and residual `[..., dim]`, weight `[dim]`.
    """
    return add_rms_norm_reference(x, residual, weight, eps=eps)


def rms_norm_reference(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Compute `rms_norm` in plain PyTorch."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


def add_rms_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Compute `add_rms_norm` in plain PyTorch."""
    total = (x.float() + residual.float()).to(residual.dtype)
    return rms_norm_reference(total, weight, eps=eps).to(x.dtype), total
