"""RoPE and the KV cache write on the CPU, alone and fused, in fp32 and bf16 with a cache of either dtype.

One kernel serves all three ops: a parameter selects the halves of the work. The formulas are in the ops' files; each
function here takes arguments that its op's host function has already checked.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.cpu.kv_layout import PLAIN, group_size, put_key, put_plain, put_value
from kernels.cpu.runtime.block import FAULT, NUM_TASKS, Block
from kernels.cpu.runtime.launch import CpuKernel
from kernels.cpu.runtime.memory import (
    bfloat16_at,
    fetch_add,
    float32_at,
    int64_at,
    jit,
    jit_once,
    load,
    pointer_like,
    store,
)
from kernels.errors import KernelInputError
from kernels.paged import LayerCache, PagedStep

_PARALLEL_FROM = 32_768  # elements; below, starting the second thread costs more than it saves
DTYPES = (torch.float32, torch.bfloat16)
_BLOCK = Block(
    """
    key* tokens per_task kv_heads head_dim key_stride key_head_stride
    query* cos_sin* positions* heads query_stride query_head_stride half num_positions
    value* key_cache* value_cache* slots* value_stride value_head_stride num_slots block_size group_size
    """
)
_AT = _BLOCK.at
_NO_ROTATION, _NO_WRITE = (0,) * 8, (0,) * 9


@jit
def _rotate(data: Any, start: int, cos_sin: Any, angle: int, half: int) -> None:
    for i in range(half):
        cos, sin = cos_sin[angle + i], cos_sin[angle + half + i]
        first, second = load(data, start + i), load(data, start + half + i)
        store(data, start + i, first * cos - second * sin)
        store(data, start + half + i, second * cos + first * sin)


@jit_once
def _rotate_token(p: Any, token: int, query: Any, key: Any) -> None:
    cos_sin, positions = float32_at(p[_AT.cos_sin]), int64_at(p[_AT.positions])
    query_stride, query_head_stride = p[_AT.query_stride], p[_AT.query_head_stride]
    key_stride, key_head_stride = p[_AT.key_stride], p[_AT.key_head_stride]
    heads, kv_heads, half, num_positions = p[_AT.heads], p[_AT.kv_heads], p[_AT.half], p[_AT.num_positions]
    position = positions[token]
    if position < 0 or position >= num_positions:
        p[FAULT] = 1
        return
    for head in range(heads):
        _rotate(query, token * query_stride + head * query_head_stride, cos_sin, position * 2 * half, half)
    for head in range(kv_heads):
        _rotate(key, token * key_stride + head * key_head_stride, cos_sin, position * 2 * half, half)


@jit_once
def _write_token(p: Any, token: int, new: Any, caches: Any) -> None:
    (key, value), (key_cache, value_cache) = new, caches
    slots, num_slots, block_size = int64_at(p[_AT.slots]), p[_AT.num_slots], p[_AT.block_size]
    kv_heads, head_dim = p[_AT.kv_heads], p[_AT.head_dim]
    key_stride, key_head_stride = p[_AT.key_stride], p[_AT.key_head_stride]
    value_stride, value_head_stride = p[_AT.value_stride], p[_AT.value_head_stride]
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
        if p[_AT.group_size] == PLAIN:
            put_plain(key_cache, start, offset, key, new_key, head_dim)
            put_plain(value_cache, start, offset, value, new_value, head_dim)
        else:
            put_key(key_cache, start, offset, key, new_key, head_dim)
            put_value(value_cache, start, offset, value, new_value, head_dim)


@jit_once
def _tokens(p: Any, key: Any, key_cache: Any) -> None:
    query, value = pointer_like(key, p[_AT.query]), pointer_like(key, p[_AT.value])
    value_cache = pointer_like(key_cache, p[_AT.value_cache])
    tokens, per_task, half, block_size = p[_AT.tokens], p[_AT.per_task], p[_AT.half], p[_AT.block_size]
    while True:
        task = fetch_add(p, 1)
        if task >= p[NUM_TASKS]:
            break
        for token in range(task * per_task, min((task + 1) * per_task, tokens)):
            if half > 0:
                _rotate_token(p, token, query, key)
            if block_size > 0:
                _write_token(p, token, (key, value), (key_cache, value_cache))


def _float32_to_float32(p: Any) -> None:
    _tokens(p, float32_at(p[_AT.key]), float32_at(p[_AT.key_cache]))


def _float32_to_bfloat16(p: Any) -> None:
    _tokens(p, float32_at(p[_AT.key]), bfloat16_at(p[_AT.key_cache]))


def _bfloat16_to_float32(p: Any) -> None:
    _tokens(p, bfloat16_at(p[_AT.key]), float32_at(p[_AT.key_cache]))


def _bfloat16_to_bfloat16(p: Any) -> None:
    _tokens(p, bfloat16_at(p[_AT.key]), bfloat16_at(p[_AT.key_cache]))


_KERNELS = {
    (torch.float32, torch.float32): CpuKernel(_float32_to_float32, _BLOCK),
    (torch.float32, torch.bfloat16): CpuKernel(_float32_to_bfloat16, _BLOCK),
    (torch.bfloat16, torch.float32): CpuKernel(_bfloat16_to_float32, _BLOCK),
    (torch.bfloat16, torch.bfloat16): CpuKernel(_bfloat16_to_bfloat16, _BLOCK),
}


def rope(query: Tensor, key: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """Run `rope`; raise `KernelInputError` for a position outside the table."""
    _run(key, query.shape[1], _rotation_words(query, positions, cos_sin), _NO_WRITE, key.dtype)


def write_kv(key: Tensor, value: Tensor, cache: LayerCache, slots: Tensor) -> None:
    """Run `write_kv`; raise `KernelInputError` for a slot outside the cache."""
    _run(key, 0, _NO_ROTATION, _write_words(value, cache, slots), cache.keys.dtype)


def rope_and_write_kv(  # noqa: PLR0917  the same arguments as the op
    query: Tensor, key: Tensor, value: Tensor, cos_sin: Tensor, cache: LayerCache, step: PagedStep
) -> None:
    """Run `rope_and_write_kv`; raise `KernelInputError` for a position or slot out of range."""
    rotation, write = _rotation_words(query, step.positions, cos_sin), _write_words(value, cache, step.slots)
    _run(key, query.shape[1], rotation, write, cache.keys.dtype)


def _rotation_words(query: Tensor, positions: Tensor, cos_sin: Tensor) -> tuple[int, ...]:
    num_positions, rot_dim = cos_sin.shape
    return (
        query.data_ptr(), cos_sin.data_ptr(), positions.data_ptr(),
        query.shape[1], query.stride(0), query.stride(1), rot_dim // 2, num_positions,
    )  # fmt: skip


def _write_words(value: Tensor, cache: LayerCache, slots: Tensor) -> tuple[int, ...]:
    num_blocks, _, block_size, _ = cache.keys.shape
    return (
        value.data_ptr(), cache.keys.data_ptr(), cache.values.data_ptr(), slots.data_ptr(),
        value.stride(0), value.stride(1), num_blocks * block_size, block_size, group_size(cache.keys),
    )  # fmt: skip


def _run(key: Tensor, heads: int, rotation: tuple[int, ...], write: tuple[int, ...], cache_dtype: torch.dtype) -> None:
    """Run the selected halves of the work: the rotation of this many heads, the write, or both."""
    tokens, kv_heads, head_dim = key.shape
    per_task = max(1, -(-tokens // 8))
    words = (
        key.data_ptr(), tokens, per_task, kv_heads, head_dim, key.stride(0), key.stride(1),
        *rotation,
        *write,
    )  # fmt: skip
    is_parallel = tokens * (heads + 2 * kv_heads) * head_dim >= _PARALLEL_FROM
    if _KERNELS[key.dtype, cache_dtype](-(-tokens // per_task), words, parallel=is_parallel):
        limits = _BLOCK.named(words)
        raise KernelInputError(
            f"a position or slot points out of range: positions must lie in [0, {limits.num_positions}), "
            f"slots in [-1, {limits.num_slots})"
        )
