"""Paged attention on the CPU: reads the paged cache where it lies; same contract as `paged_attention`, its caller.

A task is one query tile of one sequence under one KV head. Where several query heads share a KV head, or the tile is
small, its tokens are attended one by one (cpu_attention_rows.py); else 64 keys at a time are transposed into scratch,
for register-panel products of all rows. Accumulation: fp32, also over a bf16 cache. Sources: as in paged_attention.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.cpu_attention_logits import cap_scores, first_state, soft_cap_of
from kernels.cpu_attention_rows import attend_rows, rows_scratch_bytes, takes_rows
from kernels.cpu_attention_tasks import tile_of
from kernels.cpu_matmul import PANEL_COLUMNS, PANEL_ROWS, multiply_panel
from kernels.cpu_memory import (
    bfloat16_at,
    bits_to_float64,
    exp2,
    fetch_add,
    float32_at,
    int32_at,
    jit,
    load,
    store,
)
from kernels.cpu_parallel import FAULT, NUM_TASKS, CpuKernel, keep
from kernels.errors import require

_TILE_ROWS = 96  # query rows (tokens × heads of a group) that share one pass over the keys
_TILE_KEYS = 64
_UNBOUNDED = 1 << 40  # a window longer than any context
_PARALLEL_FROM = 200_000  # multiply-adds; below, starting the second thread costs more than it saves
_LOG2_E = 1.4426950408889634

DTYPES = (torch.float32, torch.bfloat16)


@jit
def _attend_panels(p: Any, cache: Any, place: Any, scratch: Any) -> None:
    """Attend all rows of a large tile, 64 keys after the other, by panel products."""
    q, acc, state, scores, wide = scratch
    group, dim, window = p[12], p[13], p[17]
    sequence, kv_head, num_tokens, position = place
    rows, padded_dim = num_tokens * group, _padded(p[13])
    keys, values = wide, wide + 4 * _TILE_KEYS * dim
    begin, end = max(position + 1 - window, 0), position + num_tokens
    soft_cap = soft_cap_of(p)
    for start in range(begin, end, _TILE_KEYS):
        count = min(end - start, _TILE_KEYS)
        if not _gather(p, cache, (sequence, kv_head, start, count), (keys, values)):
            p[FAULT] = 1
            return
        for row in range(0, rows, PANEL_ROWS):
            for n in range(0, count, PANEL_COLUMNS):
                multiply_panel(
                    float32_at(q + 4 * row * padded_dim), padded_dim, float32_at(keys + 4 * n), _TILE_KEYS,
                    float32_at(scores + 4 * (row * _TILE_KEYS + n)), _TILE_KEYS, dim, 0,
                )  # fmt: skip
        for row in range(rows):
            own = position + row // group - start
            span = max(own + 1 - window, 0), min(own + 1, count)
            pieces = float32_at(acc + 4 * row * padded_dim), float32_at(state + 8 * row)
            own_scores = float32_at(scores + 4 * row * _TILE_KEYS)
            if soft_cap > 0.0:
                cap_scores(own_scores, span, np.float32(1.0), np.float32(soft_cap * _LOG2_E))
            _soften(own_scores, pieces, dim, span, count)
        for row in range(0, rows, PANEL_ROWS):
            for d in range(0, dim, PANEL_COLUMNS):
                multiply_panel(
                    float32_at(scores + 4 * row * _TILE_KEYS), _TILE_KEYS, float32_at(values + 4 * d), padded_dim,
                    float32_at(acc + 4 * (row * padded_dim + d)), padded_dim, count, 1,
                )  # fmt: skip


@jit
def _gather(p: Any, cache: Any, place: Any, tile: Any) -> bool:
    """Copy up to 64 keys (transposed) and values from the cache into scratch; False at a block id out of range."""
    tables = int32_at(p[7])
    kv_heads, dim, block_size, num_blocks, table_stride = p[11], p[13], p[14], p[15], p[16]
    sequence, kv_head, start, count = place
    keys, values, padded_dim = float32_at(tile[0]), float32_at(tile[1]), _padded(dim)
    for n in range(count):
        block = np.int64(tables[sequence * table_stride + (start + n) // block_size])
        if block < 0 or block >= num_blocks:
            return False
        base = ((block * kv_heads + kv_head) * block_size + (start + n) % block_size) * dim
        for d in range(dim):
            keys[d * _TILE_KEYS + n] = load(cache[0], base + d)
        for d in range(dim):
            values[n * padded_dim + d] = load(cache[1], base + d)
    return True


@jit
def _soften(scores: Any, pieces: Any, dim: int, span: Any, count: int) -> None:
    """Turn a row of scores into unnormalised shares, zero outside `span`, and rescale what the row has so far."""
    accumulator, state = pieces
    low, high = span
    top = state[0]
    for n in range(low, high):
        top = max(top, scores[n])
    if top > state[0]:
        factor = exp2(state[0] - top)
        state[0] = top
        state[1] *= factor
        for d in range(dim):
            accumulator[d] *= factor
    total = np.float32(0.0)
    for n in range(low, high):
        scores[n] = exp2(scores[n] - top)
        total += scores[n]
    state[1] += total
    for n in range(min(low, count)):
        scores[n] = np.float32(0.0)
    for n in range(max(high, 0), count):
        scores[n] = np.float32(0.0)


@jit
def _padded(dim: int) -> int:
    return (dim + PANEL_COLUMNS - 1) // PANEL_COLUMNS * PANEL_COLUMNS


@jit
def _attend_tile(p: Any, pointers: Any, tile: Any, scratch: Any) -> None:
    """Attend query tokens [first, last) (rows of the batch) of one sequence under one KV head."""
    query, keys, values, out = pointers
    sequence, kv_head, first, last, position = tile
    kv_heads, group, dim, query_stride, head_stride = p[11], p[12], p[13], p[18], p[19]
    rows = (last - first) * group
    padded_dim = _padded(dim)
    q, acc, state = float32_at(scratch[0]), float32_at(scratch[1]), float32_at(scratch[2])
    soft_cap = soft_cap_of(p)
    scale = np.float32(bits_to_float64(p[20]) * (1.0 / soft_cap if soft_cap > 0.0 else _LOG2_E))
    for row in range((rows + PANEL_ROWS - 1) // PANEL_ROWS * PANEL_ROWS):
        start = (first + row // group) * query_stride + (kv_head * group + row % group) * head_stride
        for d in range(dim):
            q[row * padded_dim + d] = load(query, start + d) * scale if row < rows else np.float32(0.0)
        for d in range(padded_dim):
            acc[row * padded_dim + d] = np.float32(0.0)
        state[2 * row], state[2 * row + 1] = first_state(p, kv_head * group + row % group)
    _attend_panels(p, (keys, values), (sequence, kv_head, last - first, position), scratch)
    for row in range(rows):
        total = state[2 * row + 1]
        share = np.float32(1.0) / total if total != np.float32(0.0) else np.float32(0.0)
        start = ((first + row // group) * kv_heads * group + kv_head * group + row % group) * dim
        for d in range(dim):
            store(out, start + d, acc[row * padded_dim + d] * share)


@jit
def _all_tiles(p: Any, query: Any, keys: Any, values: Any, out: Any) -> None:
    group, dim, tokens_per_tile = p[12], p[13], p[21]
    rows, padded_dim = max(tokens_per_tile * group + PANEL_ROWS, _TILE_ROWS), _padded(dim)
    panels_bytes = 4 * (2 * rows * padded_dim + 2 * rows + (rows + 2 * padded_dim) * _TILE_KEYS)
    memory = np.empty(max(panels_bytes, rows_scratch_bytes(group, dim)) // 4 + 16, np.float32)
    q = (memory.ctypes.data + 63) // 64 * 64
    acc = q + 4 * rows * padded_dim
    state = acc + 4 * rows * padded_dim
    scores = state + 8 * rows
    scratch = q, acc, state, scores, scores + 4 * rows * _TILE_KEYS
    task = fetch_add(p, 1)
    while task < p[NUM_TASKS]:
        tile = tile_of(p, task)
        tokens = tile[3] - tile[2]
        if tokens <= 0:
            task = fetch_add(p, 1)
        elif takes_rows(query, keys, tokens, group):
            is_right, task = attend_rows(p, (query, keys, values, out), tile, q)
            if not is_right:
                p[FAULT] = 1
                task = p[NUM_TASKS]
        else:
            _attend_tile(p, (query, keys, values, out), tile, scratch)
            task = fetch_add(p, 1)
    memory[0] = np.float32(0.0)  # keeps the scratch alive up to here


def _float32_over_float32(p: Any) -> None:
    _all_tiles(p, float32_at(p[3]), float32_at(p[4]), float32_at(p[5]), float32_at(p[6]))


def _float32_over_bfloat16(p: Any) -> None:
    _all_tiles(p, float32_at(p[3]), bfloat16_at(p[4]), bfloat16_at(p[5]), float32_at(p[6]))


def _bfloat16_over_float32(p: Any) -> None:
    _all_tiles(p, bfloat16_at(p[3]), float32_at(p[4]), float32_at(p[5]), bfloat16_at(p[6]))


def _bfloat16_over_bfloat16(p: Any) -> None:
    _all_tiles(p, bfloat16_at(p[3]), bfloat16_at(p[4]), bfloat16_at(p[5]), bfloat16_at(p[6]))


_KERNELS = {
    (torch.float32, torch.float32): CpuKernel(_float32_over_float32, "17qdqdq"),
    (torch.float32, torch.bfloat16): CpuKernel(_float32_over_bfloat16, "17qdqdq"),
    (torch.bfloat16, torch.float32): CpuKernel(_bfloat16_over_float32, "17qdqdq"),
    (torch.bfloat16, torch.bfloat16): CpuKernel(_bfloat16_over_bfloat16, "17qdqdq"),
}


def paged_attention(  # noqa: PLR0917  the same arguments as the op
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    *,
    scale: float,
    window: int | None,
    max_query_len: int,
    max_context_len: int,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Run `paged_attention`; raise `KernelInputError` for a block id outside the cache."""
    del max_query_len  # the tiles adapt to each sequence
    tokens, heads, dim = query.shape
    num_blocks, kv_heads, block_size, _ = key_cache.shape
    num_seqs = context_lens.shape[0]
    group = heads // kv_heads
    out = torch.empty((tokens, heads, dim), dtype=query.dtype)
    tokens_per_tile = max(1, _TILE_ROWS // group)
    wide_sinks = None if sinks is None else keep(sinks.float())
    fault = _KERNELS[query.dtype, key_cache.dtype](
        (tokens // tokens_per_tile + num_seqs) * kv_heads,
        *(query.data_ptr(), key_cache.data_ptr(), value_cache.data_ptr(), out.data_ptr()),
        *(block_tables.data_ptr(), query_start.data_ptr(), context_lens.data_ptr(), num_seqs),
        *(kv_heads, group, dim, block_size, num_blocks, block_tables.stride(0)),
        *(_UNBOUNDED if window is None else window, query.stride(0), query.stride(1), scale, tokens_per_tile),
        *(0.0 if soft_cap is None else soft_cap, 0 if wide_sinks is None else wide_sinks.data_ptr()),
        parallel=tokens * heads * dim * max_context_len >= _PARALLEL_FROM,
    )
    require(not fault, f"block_tables names a block outside the cache: ids must lie in [0, {num_blocks})")
    return out
