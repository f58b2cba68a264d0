"""Attention of query tokens over paged keys, one token after the other, for compiled CPU code.

Every token goes over its own keys in rounds of up to 128, with up to 4 heads of its KV head's group at a time: scores,
a step of online softmax (base 2), values. So a row's result depends on nothing but its token. Where queries and cache
are bf16 and the processor has AVX512-BF16, both products are bf16 dot products with fp32 sums, and the shares are
rounded to bf16 (before they are added up, so that they sum to 1); else all is fp32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from kernels.cpu_attention_logits import cap_scores, first_state, soft_cap_of
from kernels.cpu_attention_tasks import find_keys, keys_of, tile_of
from kernels.cpu_attention_vectors import MAX_ROWS, ROUND_KEYS, add_values, score_keys, soften
from kernels.cpu_memory import (
    bfloat16_at,
    bits_to_float64,
    fetch_add,
    float32_at,
    int64_at,
    jit,
    load,
    store,
)
from kernels.cpu_parallel import NUM_TASKS
from kernels.cpu_vectors import LANES, PAIRED_LANES, has_bfloat16_dot

_LOG2_E = 1.4426950408889634


def _takes_dot(query: Any, keys: Any) -> bool:
    return query.dtype == types.uint16 and keys.dtype == types.uint16 and has_bfloat16_dot()


def _lanes(query: Any, keys: Any) -> Any:
    """Return how many dimensions one load takes: 32 for bf16 dot products, else 16."""
    raise NotImplementedError("runs in compiled code only")


@overload(_lanes)
def _lanes_of(query: Any, keys: Any) -> Any:
    lanes = PAIRED_LANES if _takes_dot(query, keys) else LANES

    def known(query: Any, keys: Any) -> Any:
        return lanes

    return known


def _operand_at(query: Any, keys: Any, address: Any) -> Any:
    """Return a pointer to queries or shares in the dtype that the products take."""
    raise NotImplementedError("runs in compiled code only")


@overload(_operand_at)
def _operand_pointer(query: Any, keys: Any, address: Any) -> Any:
    pointer_at = bfloat16_at if _takes_dot(query, keys) else float32_at

    def pointer(query: Any, keys: Any, address: Any) -> Any:
        return pointer_at(address)

    return pointer


@jit
def _padded(dim: int) -> int:
    return (dim + PAIRED_LANES - 1) // PAIRED_LANES * PAIRED_LANES


@jit
def takes_rows(query: Any, keys: Any, tokens: int, group: int) -> bool:
    """Say whether a tile is for `attend_rows`; else the panels' cost of transposing the keys is worth it.

    Measured on a Zen 4 at contexts of 512 and up, heads of 64: from 3 heads a group on the panels gain nothing.
    """
    if group >= 3:
        return True
    if _lanes(query, keys) == PAIRED_LANES:
        return group == 2 or tokens < 28
    return tokens < (20 if group == 2 else 12)


@jit
def rows_scratch_bytes(group: int, dim: int) -> int:
    """Return how much scratch `attend_rows` needs."""
    return 16 * ROUND_KEYS + 8 * MAX_ROWS * ROUND_KEYS + 4 * LANES * (1 + group) + 8 * group * _padded(dim)


@jit
def attend_rows(p: Any, pointers: Any, tile: Any, scratch: int) -> Any:
    """Attend a tile (as `tile_of` returns it); return whether all block ids were in range, and the next task taken.

    The next task is taken before the last round, so that its first keys can be fetched meanwhile. `scratch` is an
    address, best on a cache line.
    """
    sequence, kv_head, first, last, position = tile
    for token in range(first, last - 1):
        place = sequence, kv_head, token, position + token - first
        if not _attend_token(p, pointers, place, False, scratch)[0]:
            return False, p[NUM_TASKS]
    return _attend_token(p, pointers, (sequence, kv_head, last - 1, position + last - 1 - first), True, scratch)


@jit
def _attend_token(p: Any, pointers: Any, place: Any, is_last: bool, scratch: int) -> Any:
    query, keys, _, out = pointers
    sequence, kv_head, token, position = place
    group, dim = p[12], p[13]
    offsets, ahead = scratch, scratch + 8 * ROUND_KEYS
    scores = ahead + 8 * ROUND_KEYS
    states = scores + 8 * MAX_ROWS * ROUND_KEYS
    sums = states + 4 * LANES * (1 + group)
    queries = sums + 4 * group * _padded(dim)
    begin, end, taken = keys_of(p, position)
    next_task = np.int64(-1)
    if not find_keys(p, (sequence, kv_head, begin, min(end - begin, taken)), int64_at(offsets)):
        return False, next_task
    _begin_token(p, query, keys, (kv_head, token), (states, sums, queries))
    for start in range(begin, end, taken):
        following = start + taken
        is_known = False
        if following < end:
            is_known = find_keys(p, (sequence, kv_head, following, min(end - following, taken)), int64_at(ahead))
            if not is_known:
                return False, next_task
        elif is_last:
            next_task = fetch_add(p, 1)
            is_known = _find_first_keys(p, next_task, int64_at(ahead))
        rounds = int64_at(offsets), int64_at(ahead if is_known else offsets)
        _fold_round(p, pointers, min(end - start, taken), rounds, (scores, states, sums, queries))
        offsets, ahead = ahead, offsets
    _end_token(p, out, (kv_head, token), (states, sums))
    if is_last and next_task < 0:
        next_task = fetch_add(p, 1)
    return True, next_task


@jit
def _find_first_keys(p: Any, task: int, offsets: Any) -> bool:
    """Note where a coming task's first keys lie, and say whether it has some; its own errors are found in its turn."""
    if task >= p[NUM_TASKS]:
        return False
    sequence, kv_head, first, last, position = tile_of(p, task)
    begin, end, taken = keys_of(p, position)
    if first >= last or begin >= end:
        return False
    return find_keys(p, (sequence, kv_head, begin, min(end - begin, taken)), offsets)


@jit
def _begin_token(p: Any, query: Any, keys: Any, place: Any, scratch: Any) -> None:
    kv_head, token = place
    states, sums, queries = float32_at(scratch[0]), float32_at(scratch[1]), _operand_at(query, keys, scratch[2])
    group, dim, token_stride, head_stride = p[12], p[13], p[18], p[19]
    padded = _padded(dim)
    for row in range(group):
        start = token * token_stride + (kv_head * group + row) * head_stride
        for d in range(dim):
            store(queries, row * padded + d, load(query, start + d))
        for d in range(dim, padded):
            store(queries, row * padded + d, np.float32(0.0))
        for d in range(padded):
            sums[row * padded + d] = np.float32(0.0)
        states[LANES * (row + 1)], states[LANES * (row + 1) + 1] = first_state(p, kv_head * group + row)


@jit
def _fold_round(p: Any, pointers: Any, count: int, rounds: Any, scratch: Any) -> None:
    """Fold `count` keys into all rows of the group, up to 4 rows at a time; rounds = (offsets, those of the next)."""
    query, keys, values, _ = pointers
    scores, states, sums, queries = scratch
    group, dim = p[12], p[13]
    padded, item = _padded(dim), 64 // _lanes(query, keys)
    scale, soft_cap, shares = bits_to_float64(p[20]), soft_cap_of(p), scores + 4 * MAX_ROWS * ROUND_KEYS
    base_2 = np.float32(_LOG2_E if soft_cap > 0.0 else scale * _LOG2_E)  # a cap is put on scaled scores
    groups, chunks = (count + LANES - 1) // LANES, (group + MAX_ROWS - 1) // MAX_ROWS
    for chunk in range(chunks):
        low = chunk * group // chunks
        rows = (chunk + 1) * group // chunks - low
        asked = _operand_at(query, keys, queries + item * low * padded)
        score_keys(rows, asked, padded, keys, rounds[0], rounds[1], groups, dim, float32_at(scores))
        for row in range(rows):
            at = row * ROUND_KEYS
            if soft_cap > 0.0:
                span = 0, groups * LANES
                cap_scores(float32_at(scores + 4 * at), span, np.float32(scale / soft_cap), np.float32(soft_cap))
            own_shares = _operand_at(query, keys, shares + item * at)
            state = float32_at(states + 4 * LANES * (1 + low + row))
            factor = soften(float32_at(scores + 4 * at), own_shares, groups, count, base_2, state)
            float32_at(states)[row] = factor
        own_sums, all_shares = float32_at(sums + 4 * low * padded), _operand_at(query, keys, shares)
        add_values(
            rows, all_shares, values, rounds[0], rounds[1], count, own_sums, padded, float32_at(states), dim
        )  # fmt: skip


@jit
def _end_token(p: Any, out: Any, place: Any, scratch: Any) -> None:
    kv_head, token = place
    states, sums = float32_at(scratch[0]), float32_at(scratch[1])
    kv_heads, group, dim = p[11], p[12], p[13]
    padded = _padded(dim)
    for row in range(group):
        total = states[LANES * (row + 1) + 1]
        share = np.float32(1.0) / total if total != np.float32(0.0) else np.float32(0.0)
        start = (token * kv_heads * group + kv_head * group + row) * dim
        for d in range(dim):
            store(out, start + d, sums[row * padded + d] * share)
