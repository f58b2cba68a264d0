"""RoPE and the KV cache write on the CPU, alone and fused, in fp32 and bf16 with a cache of either dtype.

One kernel serves all three ops: a parameter says which halves of the work are wanted. The formulas are in the files of
the ops; each function here takes what its op's host function has already checked.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.cpu.kv_layout import PLAIN, group_size, put_key, put_plain, put_value
from kernels.cpu.runtime.launch import FAULT, NUM_TASKS, CpuKernel
from kernels.cpu.runtime.memory import bfloat16_at, fetch_add, float32_at, int64_at, jit, load, store
from kernels.errors import require
from kernels.paged import LayerCache, PagedStep

_PARALLEL_FROM = 32_768  # elements; below, starting the second thread costs more than it saves
DTYPES = (torch.float32, torch.bfloat16)


@jit
def _rotate(data: Any, start: int, cos_sin: Any, angle: int, half: int) -> None:
    for i in range(half):
        cos, sin = cos_sin[angle + i], cos_sin[angle + half + i]
        first, second = load(data, start + i), load(data, start + half + i)
        store(data, start + i, first * cos - second * sin)
        store(data, start + half + i, second * cos + first * sin)


@jit
def _rotate_token(p: Any, token: int, query: Any, key: Any) -> None:
    cos_sin, positions = float32_at(p[5]), int64_at(p[6])
    heads, kv_heads, query_stride, key_stride = p[13], p[14], p[15], p[16]
    query_head_stride, key_head_stride, half, num_positions = p[18], p[19], p[22], p[23]
    position = positions[token]
    if position < 0 or position >= num_positions:
        p[FAULT] = 1
        return
    for head in range(heads):
        _rotate(query, token * query_stride + head * query_head_stride, cos_sin, position * 2 * half, half)
    for head in range(kv_heads):
        _rotate(key, token * key_stride + head * key_head_stride, cos_sin, position * 2 * half, half)


@jit
def _write_token(p: Any, token: int, new: Any, caches: Any) -> None:
    (key, value), (key_cache, value_cache) = new, caches
    slots = int64_at(p[10])
    kv_heads, key_stride, value_stride = p[14], p[16], p[17]
    key_head_stride, value_head_stride, head_dim = p[19], p[20], p[21]
    num_slots, block_size = p[24], p[25]
    slot = slots[token]
    if slot == -1:
        return
    if slot < 0 or slot >= num_slots:
        p[FAULT] = 1
        return
    block, offset = slot // block_size, slot % block_size
    for head in range(kv_heads):
        start = (block * kv_heads + head) * block_size * head_dim
        new_key = token * key_stride + head * key_head_stride
        new_value = token * value_stride + head * value_head_stride
        if p[26] == PLAIN:
            put_plain(key_cache, start, offset, key, new_key, head_dim)
            put_plain(value_cache, start, offset, value, new_value, head_dim)
        else:
            put_key(key_cache, start, offset, key, new_key, head_dim)
            put_value(value_cache, start, offset, value, new_value, head_dim)


@jit
def _tokens(  # noqa: PLR0917  compiled
    p: Any, query: Any, key: Any, value: Any, key_cache: Any, value_cache: Any
) -> None:
    tokens, chunk, half, block_size = p[11], p[12], p[22], p[25]
    while True:
        task = fetch_add(p, 1)
        if task >= p[NUM_TASKS]:
            break
        for token in range(task * chunk, min((task + 1) * chunk, tokens)):
            if half > 0:
                _rotate_token(p, token, query, key)
            if block_size > 0:
                _write_token(p, token, (key, value), (key_cache, value_cache))


def _float32_to_float32(p: Any) -> None:
    _tokens(p, float32_at(p[3]), float32_at(p[4]), float32_at(p[7]), float32_at(p[8]), float32_at(p[9]))


def _float32_to_bfloat16(p: Any) -> None:
    _tokens(p, float32_at(p[3]), float32_at(p[4]), float32_at(p[7]), bfloat16_at(p[8]), bfloat16_at(p[9]))


def _bfloat16_to_float32(p: Any) -> None:
    _tokens(p, bfloat16_at(p[3]), bfloat16_at(p[4]), bfloat16_at(p[7]), float32_at(p[8]), float32_at(p[9]))


def _bfloat16_to_bfloat16(p: Any) -> None:
    _tokens(p, bfloat16_at(p[3]), bfloat16_at(p[4]), bfloat16_at(p[7]), bfloat16_at(p[8]), bfloat16_at(p[9]))


_KERNELS = {
    (torch.float32, torch.float32): CpuKernel(_float32_to_float32, "24q"),
    (torch.float32, torch.bfloat16): CpuKernel(_float32_to_bfloat16, "24q"),
    (torch.bfloat16, torch.float32): CpuKernel(_bfloat16_to_float32, "24q"),
    (torch.bfloat16, torch.bfloat16): CpuKernel(_bfloat16_to_bfloat16, "24q"),
}


def rope(query: Tensor, key: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """Run `rope`; raise `KernelInputError` for a position outside the table."""
    _run(query, key, positions, cos_sin, None, None, None)


def write_kv(key: Tensor, value: Tensor, cache: LayerCache, slots: Tensor) -> None:
    """Run `write_kv`; raise `KernelInputError` for a slot outside the cache."""
    _run(None, key, None, None, value, cache, slots)


def rope_and_write_kv(  # noqa: PLR0917  the same arguments as the op
    query: Tensor, key: Tensor, value: Tensor, cos_sin: Tensor, cache: LayerCache, step: PagedStep
) -> None:
    """Run `rope_and_write_kv`; raise `KernelInputError` for a position or slot out of range."""
    _run(query, key, step.positions, cos_sin, value, cache, step.slots)


def _run(  # noqa: PLR0917  private; one call site per op
    query: Tensor | None,
    key: Tensor,
    positions: Tensor | None,
    cos_sin: Tensor | None,
    value: Tensor | None,
    cache: LayerCache | None,
    slots: Tensor | None,
) -> None:
    """Run the halves of the work whose tensors are given: the rotation, the write, or both."""
    tokens, kv_heads, head_dim = key.shape
    query_words = (0, 0, 0, 0)
    angle_words = (0, 0, 0, 0)
    if query is not None and positions is not None and cos_sin is not None:
        query_words = (query.data_ptr(), query.shape[1], query.stride(0), query.stride(1))
        angle_words = (cos_sin.data_ptr(), positions.data_ptr(), cos_sin.shape[1] // 2, cos_sin.shape[0])
    value_words = (0, 0, 0)
    cache_words = (0, 0, 0, 0, 0, 0)
    cache_dtype = key.dtype
    if value is not None and cache is not None and slots is not None:
        value_words = (value.data_ptr(), value.stride(0), value.stride(1))
        block_size = cache.keys.shape[2]
        num_slots = cache.keys.shape[0] * block_size
        addresses = cache.keys.data_ptr(), cache.values.data_ptr(), slots.data_ptr()
        cache_words = (*addresses, num_slots, block_size, group_size(cache.keys))
        cache_dtype = cache.keys.dtype
    chunk = max(1, -(-tokens // 8))
    fault = _KERNELS[key.dtype, cache_dtype](
        -(-tokens // chunk),
        *(query_words[0], key.data_ptr(), angle_words[0], angle_words[1], value_words[0], *cache_words[:3]),
        *(tokens, chunk, query_words[1], kv_heads, query_words[2], key.stride(0), value_words[1]),
        *(query_words[3], key.stride(1), value_words[2], head_dim, *angle_words[2:], *cache_words[3:]),
        parallel=tokens * (query_words[1] + 2 * kv_heads) * head_dim >= _PARALLEL_FROM,
    )
    require(
        not fault,
        f"a position or slot points out of range: positions must lie in [0, {angle_words[3]}), "
        f"slots in [-1, {cache_words[3]})",
    )
