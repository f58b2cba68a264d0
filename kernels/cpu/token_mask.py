"""The token mask on the CPU, one compiled call, in fp32 and bf16. The formula is in token_mask.py.

A word of 32 allowed tokens is skipped and one of 32 forbidden ones filled, so most masks cost a write of the forbidden
logits. Arguments have already been checked, except the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.cpu.runtime.block import FAULT, NUM_TASKS, Block
from kernels.cpu.runtime.launch import CpuKernel
from kernels.cpu.runtime.memory import bfloat16_at, fetch_add, float32_at, int32_at, int64_at, jit_once, store
from kernels.errors import require

DTYPES = (torch.float32, torch.bfloat16)
_PARALLEL_FROM = 262_144  # tokens; below, starting the second thread costs more than it saves
_BLOCK = Block("logits* mask* rows* num_rows row_stride mask_words vocab")
_AT = _BLOCK.at


@jit_once
def _mask_rows(p: Any, logits: Any) -> None:
    mask, rows = int32_at(p[_AT.mask]), int64_at(p[_AT.rows])
    num_rows, row_stride, words, vocab = p[_AT.num_rows], p[_AT.row_stride], p[_AT.mask_words], p[_AT.vocab]
    minus_infinity = np.float32(-np.inf)
    while True:
        mask_row = fetch_add(p, 1)
        if mask_row >= p[NUM_TASKS]:
            break
        row = rows[mask_row]
        if row < 0 or row >= num_rows:
            p[FAULT] = 1
            continue
        for index in range(words):
            word = mask[mask_row * words + index]
            if word == -1:
                continue
            start = row * row_stride + index * 32
            count = min(32, vocab - index * 32)
            if word == 0:
                for bit in range(count):
                    store(logits, start + bit, minus_infinity)
            else:
                for bit in range(count):
                    if (word >> bit) & 1 == 0:
                        store(logits, start + bit, minus_infinity)


def _token_mask_float32(p: Any) -> None:
    _mask_rows(p, float32_at(p[_AT.logits]))


def _token_mask_bfloat16(p: Any) -> None:
    _mask_rows(p, bfloat16_at(p[_AT.logits]))


_TOKEN_MASK = {
    torch.float32: CpuKernel(_token_mask_float32, _BLOCK),
    torch.bfloat16: CpuKernel(_token_mask_bfloat16, _BLOCK),
}


def apply_token_mask(logits: Tensor, mask: Tensor, rows: Tensor) -> None:
    """Run `apply_token_mask`; a task is a row of the mask. Raises `KernelInputError` for a row outside the logits."""
    masked, mask_words = mask.shape
    words = (
        logits.data_ptr(), mask.data_ptr(), rows.data_ptr(),
        logits.shape[0], logits.stride(0), mask_words, logits.shape[1],
    )  # fmt: skip
    is_outside = _TOKEN_MASK[logits.dtype](masked, words, parallel=masked * logits.shape[1] >= _PARALLEL_FROM)
    require(not is_outside, f"rows has a row outside the {logits.shape[0]} rows of logits; give rows that exist")
