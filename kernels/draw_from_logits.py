"""Draw one token of each row from the whole distribution given by its logits and a temperature.

    w[t] = exp((logits[t] − max) / temperature)        token = min { t : Σ_{u ≤ t} w[u] > draw · Σ w }

For a CPU, where it reads the logits twice and writes nothing of their size. draw_tokens.py is for a GPU, and filters.
Accumulation: fp32 over 512 tokens, float64 over these. Source: inversion sampling, Devroye 1986, section II.2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu import draw_from_logits as cpu_draw
from kernels.errors import require


def draw_from_logits(logits: Tensor, rows: Tensor, temperature: Tensor, draws: Tensor) -> Tensor:
    """Return a token, int64, for each of the `rows` `[count]` int64 of logits `[num_rows, vocab]` of any float.

    `temperature` above 0 and `draws` in [0, 1) are fp32 `[count]`; all on the CPU, the last axis of logits contiguous.
    A token of weight zero is never drawn. The result is NOT_FINITE of best_token.py where `best_tokens` returns that.
    Raises `KernelInputError`.
    """
    require(
        logits.dim() == 2 and logits.shape[1] > 0 and logits.stride(1) == 1 and logits.is_cpu,
        f"logits {tuple(logits.shape)} strides {logits.stride()} on {logits.device}; give [num_rows, vocab] on the CPU",
    )
    require(
        rows.dtype == torch.int64
        and temperature.dtype == draws.dtype == torch.float32
        and rows.shape == temperature.shape == draws.shape == (rows.numel(),)
        and rows.is_contiguous()
        and temperature.is_contiguous()
        and draws.is_contiguous(),
        f"rows {rows.dtype} {tuple(rows.shape)}, temperature {temperature.dtype} {tuple(temperature.shape)}, draws "
        f"{draws.dtype} {tuple(draws.shape)}; give int64 rows and two of fp32, contiguous [count]",
    )
    if logits.dtype not in cpu_draw.DTYPES:
        logits = logits.float()
    return cpu_draw.draw_from_logits(logits, rows, temperature, draws)
