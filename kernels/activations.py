"""Activations of an encoder's feed-forward layer on a CPU, alone or times a gate.

    gelu(x)      = x · Φ(x)                                                   Φ: the normal distribution
    gelu_tanh(x) = x · (1 + tanh(sqrt(2 / π) · (x + 0.044715 · x³))) / 2
    relu(x)      = max(x, 0)

Arithmetic in fp32, rounded once on the way out. In fp32 and bf16 gelu is approximated by a polynomial, at most
2.4e-7 (absolute) off beside rounding. Where nothing is compiled, torch's own functions run.
Sources: Hendrycks and Gimpel 2016 (arXiv 1606.08415), section 2; gates: Shazeer 2020 (arXiv 2002.05202).
"""

from __future__ import annotations

from enum import StrEnum

from torch import Tensor
from torch.nn import functional

from kernels.cpu import activations as cpu
from kernels.errors import require


class Activation(StrEnum):
    """An activation."""

    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    RELU = "relu"


def activate(x: Tensor, activation: Activation, *, is_gated: bool = False) -> Tensor:
    """Return the activation of every number of x `[tokens, width]`, a new, contiguous tensor.

    With `is_gated` the first half of a row is activated and multiplied with the second: `[tokens, width / 2]`. The last
    axis of x is contiguous. Raises `KernelInputError`.
    """
    is_matrix = x.dim() == 2 and x.stride(-1) == 1 and not (is_gated and x.shape[1] % 2)
    require(is_matrix, f"x is {tuple(x.shape)}; give [tokens, width], an even width with a gate, last axis contiguous")
    if x.is_cpu and x.dtype in cpu.DTYPES:
        return cpu.activate(x, activation, is_gated=is_gated)
    if is_gated:
        first, gate = x.float().chunk(2, dim=-1)
        return (_plain(first, activation) * gate).to(x.dtype)
    return _plain(x.float(), activation).to(x.dtype)


def _plain(x: Tensor, activation: Activation) -> Tensor:
    match activation:
        case Activation.GELU:
            return functional.gelu(x)
        case Activation.GELU_TANH:
            return functional.gelu(x, approximate="tanh")
        case Activation.RELU:
            return functional.relu(x)
