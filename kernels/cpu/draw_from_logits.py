"""A random token of each row on the CPU, one compiled call, in fp32 and bf16. The formula is in draw_from_logits.py.

A row's weights are summed in spans; the span that contains the draw is searched token by token. Sums: fp32 within a
span, in one order whatever the CPU's vectors, float64 over the spans.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from kernels.cpu.best_token import (
    INFINITE_HALF,
    INFINITE_SINGLE,
    find_best,
    int16_at,
    order_of_half,
    order_of_single,
)
from kernels.cpu.runtime import vectors as v
from kernels.cpu.runtime.block import FAULT, NUM_TASKS, Block
from kernels.cpu.runtime.launch import CpuKernel
from kernels.cpu.runtime.memory import bfloat16_at, fetch_add, float32_at, int32_at, int64_at, jit_once, load
from kernels.errors import require

DTYPES = (torch.float32, torch.bfloat16)
_PARALLEL_FROM = 32_768  # tokens; below, starting the second thread costs more than it saves
_SPAN = 512  # tokens
_LOG2_E = np.float32(1.4426950408889634)
_BLOCK = Block("logits* rows* temperature* draws* tokens* num_rows row_stride vocab")
_AT = _BLOCK.at

_float32 = types.CPointer(types.float32)


@intrinsic
def _weigh(  # noqa: PLR0917  compiled
    typing_context: Any, logits: Any, start: Any, count: Any, top: Any, scale: Any, weights: Any
) -> Any:
    """Write 2**((logits[start + i] − top) · scale) to weights[i] for i below `count`, and return their sum.

    Up to 15 more are written, as zeros.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _Weights(builder, arguments, logits.dtype == types.uint16).emit()

    kind = types.float32(logits, types.int64, types.int64, types.float32, types.float32, _float32)
    return kind, generate


class _Weights:
    """Write the code of `_weigh`: a vector of sums over vectors of 16 tokens, of which the last may be cut."""

    def __init__(self, builder: Any, arguments: Any, is_bfloat16: bool) -> None:
        self._builder, self._is_bfloat16 = builder, is_bfloat16
        self._logits, self._start, self._count, top, scale, self._weights = arguments
        self._top, self._scale = v.spread(builder, top), v.spread(builder, scale)
        self._total = cgutils.alloca_once(builder, v.FLOATS)

    def emit(self) -> Any:
        builder, lanes = self._builder, v.I64(v.LANES)
        builder.store(v.zeros(), self._total)
        whole = builder.and_(self._count, v.I64(-v.LANES))
        with cgutils.for_range_slice(builder, v.I64(0), whole, lanes, inc=True) as (index, _):
            self._add(index, None)
        rest = builder.sub(self._count, whole)
        with builder.if_then(builder.icmp_signed(">", rest, v.I64(0))):
            self._add(whole, rest)
        return v.sum_of_lanes(builder, builder.load(self._total))

    def _add(self, index: Any, width: Any) -> None:
        builder = self._builder
        at = builder.add(self._start, index)
        logits = v.load_floats(builder, self._logits, at, self._is_bfloat16, width)
        weights = v.exp2(builder, builder.fmul(builder.fsub(logits, self._top), self._scale))
        if width is not None:
            weights = builder.select(v.lanes_below(builder, width), weights, v.zeros())
        v.store_floats(builder, weights, self._weights, index)
        builder.store(builder.fadd(builder.load(self._total), weights), self._total)


@jit_once
def _draw(p: Any, logits: Any, task: int, best: int, scratch: Any) -> int:
    """Return the token of a task whose most likely one is `best`; scratch = (a sum for each span, weights of one)."""
    sums, weights = scratch
    start, vocab = int64_at(p[_AT.rows])[task] * p[_AT.row_stride], p[_AT.vocab]
    top, scale = load(logits, start + best), _LOG2_E / float32_at(p[_AT.temperature])[task]
    total, spans = 0.0, (vocab + _SPAN - 1) // _SPAN
    for span in range(spans):
        first = span * _SPAN
        sums[span] = np.float64(_weigh(logits, start + first, min(_SPAN, vocab - first), top, scale, weights))
        total += sums[span]
    target, before, token = np.float64(float32_at(p[_AT.draws])[task]) * total, 0.0, best
    for span in range(spans):
        if before + sums[span] <= target:
            before += sums[span]
            continue
        first = span * _SPAN
        count = min(_SPAN, vocab - first)
        _weigh(logits, start + first, count, top, scale, weights)
        for index in range(count):
            if weights[index] > np.float32(0.0):
                before += weights[index]
                token = first + index
                if before > target:
                    break
        break
    return token


@jit_once
def _draw_rows(p: Any, logits: Any, ordered: Any, order_of: Any, infinity: int) -> None:
    rows, tokens, vocab = int64_at(p[_AT.rows]), int64_at(p[_AT.tokens]), p[_AT.vocab]
    sums, weights = np.empty((vocab + _SPAN - 1) // _SPAN, np.float64), np.empty(_SPAN + v.LANES, np.float32)
    place = float32_at(weights.ctypes.data)
    task = fetch_add(p, 1)
    while task < p[NUM_TASKS]:
        if rows[task] < 0 or rows[task] >= p[_AT.num_rows]:
            p[FAULT] = 1
            break
        best = find_best(ordered, rows[task] * p[_AT.row_stride], vocab, order_of, infinity)
        tokens[task] = best if best < 0 else _draw(p, logits, task, best, (sums, place))
        task = fetch_add(p, 1)
    weights[0] = np.float32(0.0)  # keeps them alive up to here


def _from_float32(p: Any) -> None:
    _draw_rows(p, float32_at(p[_AT.logits]), int32_at(p[_AT.logits]), order_of_single, INFINITE_SINGLE)


def _from_bfloat16(p: Any) -> None:
    _draw_rows(p, bfloat16_at(p[_AT.logits]), int16_at(p[_AT.logits]), order_of_half, INFINITE_HALF)


_DRAW = {
    torch.float32: CpuKernel(_from_float32, _BLOCK),
    torch.bfloat16: CpuKernel(_from_bfloat16, _BLOCK),
}


def draw_from_logits(logits: Tensor, rows: Tensor, temperature: Tensor, draws: Tensor) -> Tensor:
    """Run `draw_from_logits`; a task is a row. Raises `KernelInputError` for a row outside the logits."""
    tokens = torch.empty(rows.shape[0], dtype=torch.int64)
    words = (
        logits.data_ptr(), rows.data_ptr(), temperature.data_ptr(), draws.data_ptr(), tokens.data_ptr(),
        logits.shape[0], logits.stride(0), logits.shape[1],
    )  # fmt: skip
    is_parallel = rows.shape[0] * logits.shape[1] >= _PARALLEL_FROM
    is_outside = _DRAW[logits.dtype](rows.shape[0], words, parallel=is_parallel)
    require(not is_outside, f"rows has a row outside the {logits.shape[0]} rows of logits; give rows that exist")
    return tokens
