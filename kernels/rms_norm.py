"""RMSNorm, alone and fused with the residual addition.

    rms_norm(x)[i]              = x[i] / sqrt(mean(x[i]²) + eps) · weight
    add_rms_norm(x, residual)   = rms_norm(s), s   with   s = x + residual

Accumulation: fp32 throughout, rounded once on the way out. The fused op normalises the sum *after* rounding it to the
residual's dtype, so that fused and unfused models agree. Source: Zhang and Sennrich 2019 (arXiv 1910.07467), section 4.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton reads the annotations of its kernels, and only tl.constexpr means something to it)

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from kernels.cpu import row_ops
from kernels.errors import require
from kernels.gpu.backend import jit, launch, next_power_of_2, tl


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Normalise the last axis of `x` and return a new, contiguous tensor.

    Shapes: x `[tokens, dim]` or, for a norm per head, `[tokens, heads, head_dim]` (a slice of a merged QKV row is fine:
    only the last axis must be contiguous), weight `[dim]` of x's dtype. Raises `KernelInputError`.
    """
    _check(x, weight)
    if x.is_cuda:
        return rms_norm_triton(x, weight, eps=eps)
    if x.is_cpu and x.dtype in row_ops.DTYPES:
        return row_ops.rms_norm(x, weight, eps)
    return rms_norm_reference(x, weight, eps=eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Add `x` to the residual stream and normalise the sum; return `(normed, new_residual)`, both new tensors.

    Shapes: x and residual `[tokens, dim]` (last axis contiguous), weight `[dim]`, all of one dtype. Raises
    `KernelInputError`.
    """
    _check(x, weight)
    if x.dim() != 2 or residual.shape != x.shape or residual.dtype != x.dtype or residual.stride(-1) != 1:
        _refuse_residual(x, residual)
    if x.is_cuda:
        return add_rms_norm_triton(x, residual, weight, eps=eps)
    if x.is_cpu and x.dtype in row_ops.DTYPES:
        return row_ops.add_rms_norm(x, residual, weight, eps)
    return add_rms_norm_reference(x, residual, weight, eps=eps)


def _check(x: Tensor, weight: Tensor) -> None:
    """Check everything in one expression; this runs 60 times a step, and only a failure needs the messages."""
    if x.dim() in (2, 3) and weight.shape == x.shape[-1:] and weight.dtype == x.dtype and x.stride(-1) == 1:
        return
    require(x.dim() in (2, 3), f"x has shape {tuple(x.shape)}; give [tokens, dim] or [tokens, heads, head_dim]")
    require(weight.shape == x.shape[-1:], f"weight has shape {tuple(weight.shape)}; x needs [{x.shape[-1]}]")
    require(weight.dtype == x.dtype, f"weight is {weight.dtype} and x is {x.dtype}; convert the weight when loading")
    require(x.stride(-1) == 1, f"x has strides {x.stride()}; its last axis must be contiguous")


def _refuse_residual(x: Tensor, residual: Tensor) -> None:
    require(
        False,
        f"x is {x.dtype} {tuple(x.shape)}, residual {residual.dtype} {tuple(residual.shape)} with strides "
        f"{residual.stride()}; give two [tokens, dim] tensors of one dtype, last axis contiguous",
    )


def rms_norm_reference(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Compute `rms_norm` in plain PyTorch."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


def add_rms_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Compute `add_rms_norm` in plain PyTorch."""
    total = (x.float() + residual.float()).to(residual.dtype)
    return rms_norm_reference(total, weight, eps=eps), total


def rows_config(dim: int) -> dict[str, int]:
    """Pick the tile of the row kernels: about 2,048 elements, at least one whole row, 16 elements a thread."""
    block = next_power_of_2(dim)
    rows = max(1, 2048 // block)
    return {"ROWS": rows, "BLOCK": block, "num_warps": min(16, max(4, rows * block // 512))}


def rms_norm_triton(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Launch the Triton kernel of `rms_norm`; the arguments are already checked."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    inner, inner_stride = (x.shape[1], x.stride(1)) if x.dim() == 3 else (1, 0)
    rows, dim = x.shape[0] * inner, x.shape[-1]
    config = rows_config(dim)
    if rows:
        launch(_rms_norm_kernel, (-(-rows // config["ROWS"]),))(
            x, weight, out, rows, inner, x.stride(0), inner_stride, eps, DIM=dim, **config
        )
    return out


def add_rms_norm_triton(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Launch the Triton kernel of `add_rms_norm`; the arguments are already checked."""
    rows, dim = x.shape
    normed, total = (torch.empty((rows, dim), dtype=x.dtype, device=x.device) for _ in range(2))
    config = rows_config(dim)
    if rows:
        launch(_add_rms_norm_kernel, (-(-rows // config["ROWS"]),))(
            x, residual, weight, normed, total, rows, x.stride(0), residual.stride(0), eps, DIM=dim, **config
        )
    return normed, total


@partial(jit, varying=("num_rows",))
def _rms_norm_kernel(  # noqa: PLR0917  a kernel's arguments are positional
    x, weight, out, num_rows, inner, row_stride, inner_stride, eps,
    DIM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    mask = (rows < num_rows)[:, None] & (columns < DIM)[None, :]
    starts = (rows // inner) * row_stride + (rows % inner) * inner_stride
    values = tl.load(x + starts[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, axis=1) / DIM + eps)
    gain = tl.load(weight + columns, mask=columns < DIM, other=0.0).to(tl.float32)
    normed = values * scale[:, None] * gain[None, :]
    tl.store(out + rows[:, None] * DIM + columns[None, :], normed.to(out.dtype.element_ty), mask=mask)


@partial(jit, varying=("num_rows",))
def _add_rms_norm_kernel(  # noqa: PLR0917  a kernel's arguments are positional
    x, residual, weight, normed_out, total_out, num_rows, x_stride, residual_stride, eps,
    DIM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    mask = (rows < num_rows)[:, None] & (columns < DIM)[None, :]
    added = tl.load(x + rows[:, None] * x_stride + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    added += tl.load(residual + rows[:, None] * residual_stride + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    total = added.to(total_out.dtype.element_ty)
    values = total.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, axis=1) / DIM + eps)
    gain = tl.load(weight + columns, mask=columns < DIM, other=0.0).to(tl.float32)
    normed = (values * scale[:, None] * gain[None, :]).to(normed_out.dtype.element_ty)
    offsets = rows[:, None] * DIM + columns[None, :]
    tl.store(total_out + offsets, total, mask=mask)
    tl.store(normed_out + offsets, normed, mask=mask)
