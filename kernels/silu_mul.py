"""SwiGLU's gate: SiLU of the first half times the second half.

    silu_mul([gate | up]) = gate · sigmoid(gate) · up

Accumulation: fp32, rounded once on the way out. Source: Shazeer 2020 (arXiv 2002.05202), equation 6.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton reads the annotations of its kernels, and only tl.constexpr means something to it)

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu import row_ops
from kernels.errors import require
from kernels.gpu.backend import jit, launch, tl

_BLOCK = 1024  # elements of a row per program: 8 for each of 128 threads


def silu_mul(gate_up: Tensor) -> Tensor:
    """Gate the second half of each row by the SiLU of the first: `[tokens, 2·ffn]` to a new `[tokens, ffn]`.

    Only the last axis must be contiguous. Raises `KernelInputError`.
    """
    if gate_up.dim() != 2 or gate_up.shape[1] % 2 or gate_up.stride(1) != 1:
        require(False, f"gate_up has shape {tuple(gate_up.shape)}, strides {gate_up.stride()}; give [tokens, 2 * ffn]")
    if gate_up.is_cuda:
        return silu_mul_triton(gate_up)
    if gate_up.is_cpu and gate_up.dtype in row_ops.DTYPES:
        return row_ops.silu_mul(gate_up)
    return silu_mul_reference(gate_up)


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """Compute `silu_mul` in plain PyTorch."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (functional.silu(gate) * up).to(gate_up.dtype)


def silu_mul_triton(gate_up: Tensor) -> Tensor:
    """Launch the Triton kernel of `silu_mul`; the argument is already checked."""
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((tokens, width), dtype=gate_up.dtype, device=gate_up.device)
    if tokens:
        launch(_silu_mul_kernel, (tokens, -(-width // _BLOCK)))(
            gate_up, out, gate_up.stride(0), width, BLOCK=_BLOCK, num_warps=4
        )
    return out


@jit
def _silu_mul_kernel(gate_up, out, row_stride, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    start = gate_up + row * row_stride
    gate = tl.load(start + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(start + width + columns, mask=mask, other=0.0).to(tl.float32)
    gated = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * width + columns, gated.to(out.dtype.element_ty), mask=mask)
