"""Paged attention on the CPU: reads the paged cache where it lies; same contract as `paged_attention`, its caller.

The work is cut into tiles of queries (cpu_attention_tasks.py), which are attended in rounds of keys
(cpu_attention_rows.py). Accumulation: fp32, also over a bf16 cache. Sources: as in paged_attention.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.cpu.attention import words as w
from kernels.cpu.attention.rows import attend_tile, scratch_of
from kernels.cpu.attention.tasks import tile_of
from kernels.cpu.kv_layout import group_size
from kernels.cpu.runtime.launch import FAULT, NUM_TASKS, CpuKernel, keep
from kernels.cpu.runtime.memory import bfloat16_at, fetch_add, float32_at, jit_once, pointer_like
from kernels.errors import require

_TILE_ROWS = 96  # query rows (tokens × heads of a group) that share one pass over the keys
_TILE_DECODES = 8  # sequences with one query each that go over their keys together
_TASKS_PER_THREAD = 16  # at least so many decode tiles, so that no thread waits long for the last
_LINE_BYTES = 64
_UNBOUNDED = 1 << 40  # a window longer than any context
_PARALLEL_FROM = 200_000  # multiply-adds; below, starting the second thread costs more than it saves

DTYPES = (torch.float32, torch.bfloat16)


@jit_once
def _all_tiles(p: Any, query: Any, keys: Any) -> None:
    values, out = pointer_like(keys, p[w.VALUE_CACHE]), pointer_like(query, p[w.OUT])
    memory = np.empty(scratch_of(p, 0).end + _LINE_BYTES, np.uint8)
    scratch = scratch_of(p, (memory.ctypes.data + _LINE_BYTES - 1) // _LINE_BYTES * _LINE_BYTES)
    task = fetch_add(p, 1)
    while task < p[NUM_TASKS]:
        tile = tile_of(p, task)
        if tile.first >= tile.last:
            task = fetch_add(p, 1)
            continue
        is_right, task = attend_tile(p, (query, keys, values, out), tile, scratch)
        if not is_right:
            p[FAULT] = 1
            break
    memory[0] = 0  # keeps the scratch alive up to here


def _float32_over_float32(p: Any) -> None:
    _all_tiles(p, float32_at(p[w.QUERY]), float32_at(p[w.KEY_CACHE]))


def _float32_over_bfloat16(p: Any) -> None:
    _all_tiles(p, float32_at(p[w.QUERY]), bfloat16_at(p[w.KEY_CACHE]))


def _bfloat16_over_float32(p: Any) -> None:
    _all_tiles(p, bfloat16_at(p[w.QUERY]), float32_at(p[w.KEY_CACHE]))


def _bfloat16_over_bfloat16(p: Any) -> None:
    _all_tiles(p, bfloat16_at(p[w.QUERY]), bfloat16_at(p[w.KEY_CACHE]))


_KERNELS = {
    (torch.float32, torch.float32): CpuKernel(_float32_over_float32, "17qdqdqqqq"),
    (torch.float32, torch.bfloat16): CpuKernel(_float32_over_bfloat16, "17qdqdqqqq"),
    (torch.bfloat16, torch.float32): CpuKernel(_bfloat16_over_float32, "17qdqdqqqq"),
    (torch.bfloat16, torch.bfloat16): CpuKernel(_bfloat16_over_bfloat16, "17qdqdqqqq"),
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
    num_decodes: int = 0,
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
    together = max(1, min(_TILE_DECODES, num_decodes * kv_heads // (_TASKS_PER_THREAD * torch.get_num_threads())))
    wide_sinks = None if sinks is None else keep(sinks.float())
    tiles = -(-num_decodes // together)
    if num_seqs > num_decodes:
        tiles += (tokens - num_decodes) // tokens_per_tile + num_seqs - num_decodes
    fault = _KERNELS[query.dtype, key_cache.dtype](
        tiles * kv_heads,
        *(query.data_ptr(), key_cache.data_ptr(), value_cache.data_ptr(), out.data_ptr()),
        *(block_tables.data_ptr(), query_start.data_ptr(), context_lens.data_ptr(), num_seqs),
        *(kv_heads, group, dim, block_size, num_blocks, block_tables.stride(0)),
        *(_UNBOUNDED if window is None else window, query.stride(0), query.stride(1), scale, tokens_per_tile),
        *(0.0 if soft_cap is None else soft_cap, 0 if wide_sinks is None else wide_sinks.data_ptr()),
        *(group_size(key_cache), num_decodes, together),
        parallel=tokens * heads * dim * max_context_len >= _PARALLEL_FROM,
    )
    require(not fault, f"block_tables names a block outside the cache: ids must lie in [0, {num_blocks})")
    return out
