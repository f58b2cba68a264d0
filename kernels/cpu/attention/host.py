"""Paged attention on the CPU: reads the paged cache in place; same contract as `paged_attention`, its caller.

The work is divided into tiles of queries (tasks.py), which are processed in rounds of keys (rows.py); entries.py has
the compiled functions. Accumulation: fp32, also over a bf16 cache. Sources: as in paged_attention.py.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from kernels.cpu.attention import entries
from kernels.cpu.attention.tiles import DIM_STEP
from kernels.cpu.attention.words import BLOCK
from kernels.cpu.kv_layout import group_size
from kernels.cpu.runtime import amx
from kernels.cpu.runtime.launch import CpuKernel, keep
from kernels.cpu.runtime.vectors import has_bfloat16_dot
from kernels.errors import require
from kernels.paged import AttentionRule, LayerCache, PagedStep

_TILE_ROWS = 96  # query rows (tokens × heads of a group) that share one pass over the keys
_TILE_DECODES = 8  # sequences with one query each that share one pass over their keys
_TASKS_PER_THREAD = 16  # at least this many decode tiles, so that no thread waits long for the last
_UNBOUNDED = 1 << 40  # tokens, more than any context has
_PARALLEL_FROM = 200_000  # multiply-adds; below, starting the second thread costs more than it saves

DTYPES = (torch.float32, torch.bfloat16)


_KERNELS = {
    (torch.float32, torch.float32): CpuKernel(entries.float32_over_float32, BLOCK),
    (torch.float32, torch.bfloat16): CpuKernel(entries.float32_over_bfloat16, BLOCK),
    (torch.bfloat16, torch.float32): CpuKernel(entries.bfloat16_over_float32, BLOCK),
    (torch.bfloat16, torch.bfloat16): CpuKernel(entries.bfloat16_over_bfloat16, BLOCK),
}
_BY_MULTIPLY_ADDS = CpuKernel(entries.bfloat16_over_bfloat16_by_multiply_adds, BLOCK)
_BY_TILES = CpuKernel(entries.bfloat16_over_bfloat16_by_tiles, BLOCK)


def paged_attention(query: Tensor, cache: LayerCache, step: PagedStep, rule: AttentionRule) -> Tensor:
    """Run `paged_attention`; raise `KernelInputError` for a block id outside the cache."""
    tokens, heads, dim = query.shape
    num_blocks, kv_heads, block_size, _ = cache.keys.shape
    num_seqs, num_decodes = step.context_lens.shape[0], step.num_decodes
    group = heads // kv_heads
    out = torch.empty((tokens, heads, dim), dtype=query.dtype)
    tokens_per_tile = max(1, _TILE_ROWS // group)
    together = max(1, min(_TILE_DECODES, num_decodes * kv_heads // (_TASKS_PER_THREAD * torch.get_num_threads())))
    sinks = None if rule.sinks is None else keep(rule.sinks.float())
    tiles = -(-num_decodes // together)
    if num_seqs > num_decodes:
        tiles += (tokens - num_decodes) // tokens_per_tile + num_seqs - num_decodes
    words = (
        query.data_ptr(), query.stride(0), query.stride(1), out.data_ptr(),
        cache.keys.data_ptr(), cache.values.data_ptr(), num_blocks, kv_heads, block_size, dim, group_size(cache.keys),
        step.block_tables.data_ptr(), step.block_tables.stride(0),
        step.query_start.data_ptr(), step.context_lens.data_ptr(), num_seqs, num_decodes,
        rule.scale, *(_UNBOUNDED if reach is None else reach for reach in (rule.window, rule.ahead)),
        rule.soft_cap or 0.0, 0 if sinks is None else sinks.data_ptr(),
        group, tokens_per_tile, together,
    )  # fmt: skip
    is_parallel = tokens * heads * dim * step.max_context_len >= _PARALLEL_FROM
    kernel = _kernel_for(query.dtype, cache.keys.dtype, dim, rule.in_float32)
    fault = kernel(tiles * kv_heads, words, parallel=is_parallel)
    require(not fault, f"block_tables names a block outside the cache: ids must lie in [0, {num_blocks})")
    return out


@functools.cache
def _has_dots() -> bool:
    return has_bfloat16_dot()


def begin_to_compile_attention(
    query_dtype: torch.dtype, cache_dtype: torch.dtype, dim: int, *, in_float32: bool | None = None
) -> None:
    """Compile the kernels of these dtypes in another process, which takes as long as all other kernels together.

    `in_float32` None means that it is not yet known whether bf16 is multiplied in fp32: the more likely kernel is
    compiled.
    """
    has_kernel = query_dtype in DTYPES and cache_dtype in DTYPES
    if in_float32 is None and torch.bfloat16 in {query_dtype, cache_dtype}:
        has_kernel = has_kernel and _has_dots()  # without them a model is more likely to run in fp32
    if has_kernel:
        _kernel_for(query_dtype, cache_dtype, dim, bool(in_float32)).begin_to_compile()


def _kernel_for(query_dtype: torch.dtype, cache_dtype: torch.dtype, dim: int, in_float32: bool) -> CpuKernel:
    both_bfloat16 = query_dtype == cache_dtype == torch.bfloat16
    if both_bfloat16 and dim % DIM_STEP == 0 and amx.can_use():
        return _BY_TILES
    if both_bfloat16 and in_float32 and _has_dots():
        return _BY_MULTIPLY_ADDS
    return _KERNELS[query_dtype, cache_dtype]
