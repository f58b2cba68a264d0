"""The most likely token of each row of logits. Knows no sampler.

    best_tokens(logits)[r] = min { t : logits[r, t] = max over all tokens of logits[r] }

No arithmetic. A GPU, and dtypes that the CPU's code does not read, take `torch.max`, which is also the twin.
"""

from __future__ import annotations

from torch import Tensor

from kernels.cpu import best_token as cpu_best_token
from kernels.errors import require


def best_tokens(logits: Tensor) -> Tensor:
    """Return the first largest entry of each row of `[rows, vocab]` logits of any float, `[rows]` int64.

    A row with a NaN gives the first NaN. Raises `KernelInputError` without a vocabulary or where the last axis is not
    contiguous.
    """
    is_right = logits.dim() == 2 and logits.shape[1] > 0 and logits.stride(1) == 1
    require(is_right, f"logits {tuple(logits.shape)} strides {logits.stride()}; give [rows, vocab], rows contiguous")
    if logits.is_cpu and logits.dtype in cpu_best_token.DTYPES:
        return cpu_best_token.best_tokens(logits)
    return logits.max(dim=-1).indices
