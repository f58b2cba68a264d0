"""Attention of a few query rows over paged keys, for compiled CPU code: the decode path, bound by memory.

Every row takes one block of keys at a time from where it lies (a bf16 block is widened into scratch first), and folds
it into a running maximum, sum and accumulator (online softmax, base 2; the queries come scaled by log2 e).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from kernels.cpu_memory import FASTMATH, exp2, load

jit = njit(fastmath=FASTMATH, error_model="numpy")


def block_in_float32(keys: Any, values: Any, base: Any, span: Any, wide: Any) -> Any:
    """Return pointers to one block's keys and values as float32, and its offset from them.

    `base` is the block's first element, `span` the elements needed, `wide` two scratch pointers.
    """
    raise NotImplementedError("runs in compiled code only")


@overload(block_in_float32)
def _block_in_float32(keys: Any, values: Any, base: Any, span: Any, wide: Any) -> Any:
    if keys.dtype == types.float32:

        def in_place(keys: Any, values: Any, base: Any, span: Any, wide: Any) -> Any:
            return keys, values, base

        return in_place

    def widened(keys: Any, values: Any, base: Any, span: Any, wide: Any) -> Any:
        for i in range(span[0], span[1]):
            wide[0][i] = load(keys, base + i)
        for i in range(span[0], span[1]):
            wide[1][i] = load(values, base + i)
        return wide[0], wide[1], np.int64(0)

    return widened


@jit
def fold_block(row: Any, block: Any, dim: int, span: Any, scores: Any) -> None:
    """Fold the keys `span` = (low, high) of one block into one query row.

    `row` is (query, accumulator, state) as float32 pointers, state holding maximum and sum; `block` is what
    `block_in_float32` returned; `scores` is scratch for one block.
    """
    state, (low, high) = row[2], span
    _score(row[0], block[0], block[2], dim, span, scores)
    top = state[0]
    for n in range(low, high):
        top = max(top, scores[n])
    if top > state[0]:
        _shrink(row[1], state, dim, top)
    total = np.float32(0.0)
    for n in range(low, high):
        scores[n] = exp2(scores[n] - top)
        total += scores[n]
    state[1] += total
    _accumulate(row[1], block[1], block[2], dim, span, scores)


@jit
def _shrink(accumulator: Any, state: Any, dim: int, top: Any) -> None:
    factor = exp2(state[0] - top)
    state[0] = top
    state[1] *= factor
    for d in range(dim):
        accumulator[d] *= factor


@jit
def _score(query: Any, keys: Any, base: int, dim: int, span: Any, scores: Any) -> None:  # noqa: PLR0917  compiled
    """Four keys a pass, so that the query is read once for the four."""
    n, high = span
    while n + 4 <= high:
        k = base + n * dim
        s0 = s1 = s2 = s3 = np.float32(0.0)
        for d in range(dim):
            x = query[d]
            s0 += x * keys[k + d]
            s1 += x * keys[k + dim + d]
            s2 += x * keys[k + 2 * dim + d]
            s3 += x * keys[k + 3 * dim + d]
        scores[n], scores[n + 1], scores[n + 2], scores[n + 3] = s0, s1, s2, s3
        n += 4
    while n < high:
        s = np.float32(0.0)
        for d in range(dim):
            s += query[d] * keys[base + n * dim + d]
        scores[n] = s
        n += 1


@jit
def _accumulate(  # noqa: PLR0917  compiled
    accumulator: Any, values: Any, base: int, dim: int, span: Any, shares: Any
) -> None:
    """Four values a pass, so that the accumulator is read and written once for the four."""
    n, high = span
    while n + 4 <= high:
        v = base + n * dim
        p0, p1, p2, p3 = shares[n], shares[n + 1], shares[n + 2], shares[n + 3]
        for d in range(dim):
            pair = p0 * values[v + d] + p1 * values[v + dim + d]
            accumulator[d] += pair + p2 * values[v + 2 * dim + d] + p3 * values[v + 3 * dim + d]
        n += 4
    while n < high:
        for d in range(dim):
            accumulator[d] += shares[n] * values[base + n * dim + d]
        n += 1
