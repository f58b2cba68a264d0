"""Forbid tokens by a bitmask: their logits become minus infinity.

    logits[rows[i], t] = −inf   where bit t % 32 of mask[i, t // 32] is 0

No arithmetic; the other logits are neither read nor written. Source: the mask layout of llguidance and xgrammar, 32
tokens per int32, the lowest bit first.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton reads the annotations of its kernels, and only tl.constexpr means something to it)

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu import token_mask as cpu_token_mask
from kernels.errors import require
from kernels.gpu.backend import jit, launch, tl

_BLOCK = 4096  # tokens of a row per program: 32 for each of 128 threads, 128 words of the mask


def apply_token_mask(logits: Tensor, mask: Tensor, rows: Tensor) -> None:
    """Set the logits of forbidden tokens to minus infinity, in place.

    Shapes: logits `[num_rows, vocab]` of any float, last axis contiguous; mask `[masked, ceil(vocab / 32)]` int32,
    contiguous; rows `[masked]` int64, the row of logits for each row of the mask, all different. Bits past the
    vocabulary are ignored. Raises `KernelInputError`; on the CPU also for a row that does not exist.
    """
    check_mask(logits, mask, rows)
    if logits.is_cuda:
        apply_token_mask_triton(logits, mask, rows)
    elif logits.is_cpu and logits.dtype in cpu_token_mask.DTYPES:
        cpu_token_mask.apply_token_mask(logits, mask, rows)
    else:
        apply_token_mask_reference(logits, mask, rows)


def check_mask(logits: Tensor, mask: Tensor, rows: Tensor) -> None:
    """Raise `KernelInputError` for tensors that `apply_token_mask` does not accept."""
    if (
        logits.dim() == 2
        and logits.stride(1) == 1
        and mask.dtype == torch.int32
        and mask.is_contiguous()
        and rows.dtype == torch.int64
        and rows.is_contiguous()
        and mask.shape == (rows.numel(), -(-logits.shape[1] // 32))
        and mask.device == rows.device == logits.device
    ):
        return
    require(
        False,
        f"logits {logits.dtype} {tuple(logits.shape)} strides {logits.stride()} on {logits.device}, mask {mask.dtype} "
        f"{tuple(mask.shape)} on {mask.device}, rows {rows.dtype} {tuple(rows.shape)} on {rows.device}; give logits "
        "[num_rows, vocab] with a contiguous last axis, a contiguous int32 mask [masked, ceil(vocab / 32)] and "
        "contiguous int64 rows [masked], all on one device",
    )


def apply_token_mask_reference(logits: Tensor, mask: Tensor, rows: Tensor) -> None:
    """Compute `apply_token_mask` in plain PyTorch."""
    bits = mask[:, :, None] >> torch.arange(32, dtype=torch.int32, device=mask.device) & 1
    is_allowed = bits.flatten(1)[:, : logits.shape[1]].bool()
    logits[rows] = logits[rows].masked_fill(~is_allowed, -torch.inf)


def apply_token_mask_triton(logits: Tensor, mask: Tensor, rows: Tensor) -> None:
    """Launch the Triton kernel of `apply_token_mask`; the arguments are already checked."""
    masked, words = mask.shape
    vocab = logits.shape[1]
    if masked and vocab:
        launch(_token_mask_kernel, (masked, -(-vocab // _BLOCK)))(
            logits, mask, rows, logits.stride(0), words, vocab, BLOCK=_BLOCK, num_warps=4
        )


@jit
def _token_mask_kernel(logits, mask, rows, row_stride, words, vocab, BLOCK: tl.constexpr):  # noqa: PLR0917  positional
    mask_row = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + mask_row)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_token = tokens < vocab
    word = tl.load(mask + mask_row * words + tokens // 32, mask=is_token, other=-1)
    is_forbidden = ((word >> (tokens % 32)) & 1) == 0
    minus_infinity = tl.full((BLOCK,), float("-inf"), tl.float32).to(logits.dtype.element_ty)
    tl.store(logits + row * row_stride + tokens, minus_infinity, mask=is_token & is_forbidden)
