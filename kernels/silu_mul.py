"""SwiGLU's gate: SiLU of the first half times the second half. Knows nothing of the projections around it.

    silu_mul([gate | up]) = gate · sigmoid(gate) · up

Accumulation: fp32, rounded once on the way out. Source: Shazeer 2020 (arXiv 2002.05202), equation 6.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def silu_mul(gate_up: Tensor) -> Tensor:
    """Gate the second half of each row by the SiLU of the first: `[tokens, 2·ffn]` to `[tokens, ffn]`, same dtype."""
    return silu_mul_reference(gate_up)


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """Compute `silu_mul` in plain PyTorch."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (functional.silu(gate) * up).to(gate_up.dtype)
