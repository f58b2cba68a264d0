"""The most likely token of each row on the CPU, one compiled call, in fp32 and bf16.

The numbers are compared as integers of the same order, of which vector code compares 32 or 16 at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import types
from torch import Tensor

from kernels.cpu.runtime.block import NUM_TASKS, Block
from kernels.cpu.runtime.launch import CpuKernel
from kernels.cpu.runtime.memory import address_cast, fetch_add, int32_at, int64_at, jit, jit_once

DTYPES = (torch.float32, torch.bfloat16)
_PARALLEL_FROM = 131_072  # tokens; below, starting the second thread costs more than it saves
_BLOCK = Block("logits* tokens* row_stride vocab")
_AT = _BLOCK.at
NOT_FINITE = -2
"""In place of a token if the largest logit of a row is not finite."""
_SPAN = 512  # tokens whose largest value is found in vectors, before its position

int16_at = address_cast(types.int16)


INFINITE_HALF, INFINITE_SINGLE = 0x7F80, 0x7F800000
"""Results of the next two functions for plus infinity."""


@jit
def order_of_half(bits: Any) -> Any:
    """Return an int16 that orders as the bf16 of these bits: a NaN above all, and both zeros alike."""
    magnitude = np.int16(bits & 0x7FFF)
    signed = np.int16(-magnitude) if bits < 0 else magnitude
    return np.int16(0x7FFF) if magnitude > 0x7F80 else signed


@jit
def order_of_single(bits: Any) -> Any:
    """Return an int32 that orders as the float of these bits."""
    magnitude = np.int32(bits & 0x7FFFFFFF)
    signed = np.int32(-magnitude) if bits < 0 else magnitude
    return np.int32(0x7FFFFFFF) if magnitude > 0x7F800000 else signed


@jit_once
def find_best(logits: Any, start: int, vocab: int, order_of: Any, infinity: int) -> int:
    """Return which of logits[start] to logits[start + vocab - 1], given as the integers of their bits, is largest.

    NOT_FINITE where that one is none between minus infinity and `infinity`, given as an integer of the same order.
    """
    best, found = order_of(logits[start]), 0
    for first in range(0, vocab, _SPAN):
        largest = order_of(logits[start + first])
        for token in range(first, min(first + _SPAN, vocab)):
            largest = max(largest, order_of(logits[start + token]))
        if largest > best:
            best, found = largest, first
    if not -infinity < best < infinity:
        return NOT_FINITE
    while order_of(logits[start + found]) != best:
        found += 1
    return found


@jit_once
def _best_of_rows(p: Any, logits: Any, order_of: Any, infinity: int) -> None:
    tokens, row_stride, vocab = int64_at(p[_AT.tokens]), p[_AT.row_stride], p[_AT.vocab]
    row = fetch_add(p, 1)
    while row < p[NUM_TASKS]:
        tokens[row] = find_best(logits, row * row_stride, vocab, order_of, infinity)
        row = fetch_add(p, 1)


def _best_token_float32(p: Any) -> None:
    _best_of_rows(p, int32_at(p[_AT.logits]), order_of_single, INFINITE_SINGLE)


def _best_token_bfloat16(p: Any) -> None:
    _best_of_rows(p, int16_at(p[_AT.logits]), order_of_half, INFINITE_HALF)


_BEST_TOKEN = {
    torch.float32: CpuKernel(_best_token_float32, _BLOCK),
    torch.bfloat16: CpuKernel(_best_token_bfloat16, _BLOCK),
}


def best_tokens(logits: Tensor) -> Tensor:
    """Run `best_tokens`; a task is a row."""
    rows, vocab = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64)
    words = logits.data_ptr(), tokens.data_ptr(), logits.stride(0), vocab
    _BEST_TOKEN[logits.dtype](rows, words, parallel=rows * vocab >= _PARALLEL_FROM)
    return tokens
