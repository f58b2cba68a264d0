"""The most likely token of each row of logits.

    best_tokens(logits)[r] = min { t : logits[r, t] = max over all tokens of logits[r] }, NOT_FINITE where that
                             maximum is NaN or an infinity: of a row with a NaN it is NaN

No arithmetic. A GPU, and dtypes that the CPU's code does not read, take `torch.max`, which is also the twin.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu import best_token as cpu_best_token
from kernels.cpu.best_token import NOT_FINITE
from kernels.errors import require

__all__ = ["NOT_FINITE", "best_tokens"]


def best_tokens(logits: Tensor) -> Tensor:
    """Return the first largest entry of each row of `[rows, vocab]` logits of any float, `[rows]` int64.

    NOT_FINITE for a row with a NaN or with plus infinity, or with minus infinity everywhere. Raises `KernelInputError`
    without a vocabulary or if the last axis is not contiguous.
    """
    is_right = logits.dim() == 2 and logits.shape[1] > 0 and logits.stride(1) == 1
    require(is_right, f"logits {tuple(logits.shape)} strides {logits.stride()}; give [rows, vocab], rows contiguous")
    if logits.is_cpu and logits.dtype in cpu_best_token.DTYPES:
        return cpu_best_token.best_tokens(logits)
    best = logits.max(dim=-1)
    return torch.where(best.values.abs() < torch.inf, best.indices, NOT_FINITE)
