"""Write this step's keys and values into the paged KV cache, addressed by slots.

    cache[slot // block_size, :, slot % block_size] = new        slot −1: nothing is written

No arithmetic; rounds to the cache's dtype. On a CPU a block has an order of its own (cpu/kv_layout.py).
Source: paged KV cache, Kwon et al. 2023 (arXiv 2309.06180), section 4.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton reads the annotations of its kernels, and only tl.constexpr means something to it)

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu import kv_ops
from kernels.errors import require
from kernels.gpu.backend import jit, launch, next_power_of_2, tl
from kernels.paged import LayerCache


def write_kv(key: Tensor, value: Tensor, cache: LayerCache, slots: Tensor) -> None:
    """Store each token's key and value at its slot; tokens with slot −1 (padding) are skipped.

    Key and value `[tokens, kv_heads, head_dim]`, their last axis contiguous; `slots` are those of a `PagedStep`. Raises
    `KernelInputError`; on the CPU also for a slot outside the cache.
    """
    check_write(key, value, cache, slots)
    if key.is_cuda:
        write_kv_triton(key, value, cache, slots)
    elif key.is_cpu and key.dtype in kv_ops.DTYPES and cache.keys.dtype in kv_ops.DTYPES:
        kv_ops.write_kv(key, value, cache, slots)
    else:
        write_kv_reference(key, value, cache, slots)


def check_write(key: Tensor, value: Tensor, cache: LayerCache, slots: Tensor) -> None:
    """Raise `KernelInputError` for tensors that `write_kv` does not accept."""
    tokens, kv_heads, head_dim = key.shape
    key_cache, value_cache = cache
    if (
        value.shape == key.shape
        and value.dtype == key.dtype
        and key.stride(2) == value.stride(2) == slots.stride(0) == 1
        and slots.shape[0] == tokens
        and slots.dtype == torch.int64
        and key_cache.shape == value_cache.shape
        and key_cache.shape[1] == kv_heads
        and key_cache.shape[3] == head_dim
        and key_cache.dtype == value_cache.dtype
        and key_cache.is_contiguous()
        and value_cache.is_contiguous()
    ):
        return
    require(
        False,
        f"key {key.dtype} {tuple(key.shape)} strides {key.stride()}, value {value.dtype} {tuple(value.shape)} strides "
        f"{value.stride()}, caches {key_cache.dtype} {tuple(key_cache.shape)} and {value_cache.dtype} "
        f"{tuple(value_cache.shape)}, slots {slots.dtype} {tuple(slots.shape)}; give key and value "
        "[tokens, kv_heads, head_dim] of one dtype with a contiguous last axis, two contiguous caches "
        "[num_blocks, kv_heads, block_size, head_dim] of one dtype, contiguous int64 slots [tokens]",
    )


def write_kv_reference(key: Tensor, value: Tensor, cache: LayerCache, slots: Tensor) -> None:
    """Compute `write_kv` in plain PyTorch."""
    live = slots >= 0
    block_size = cache.keys.shape[2]
    block_ids, offsets = slots[live] // block_size, slots[live] % block_size
    cache.keys[block_ids, :, offsets] = key[live].to(cache.keys.dtype)
    cache.values[block_ids, :, offsets] = value[live].to(cache.values.dtype)


def preferred_cache_dtype(device_type: str, dtype: torch.dtype) -> torch.dtype:
    """Return the KV cache dtype that is fastest for a model of `dtype` on `device_type`; every other float works too.

    It is always the model's own: measured on a CPU, where a mixed pair would save either widening or memory, a cache of
    the model's dtype was never slower (README.md), and on a GPU mixed pairs convert in registers.
    """
    del device_type
    return dtype


def write_config(kv_heads: int, head_dim: int) -> dict[str, int]:
    """Pick the tile of the write: one token's keys, then its values, 16 elements a thread."""
    k_block, d_block = next_power_of_2(kv_heads), next_power_of_2(head_dim)
    return {"K_BLOCK": k_block, "D_BLOCK": d_block, "num_warps": min(8, max(1, k_block * d_block // 512))}


def write_kv_triton(key: Tensor, value: Tensor, cache: LayerCache, slots: Tensor) -> None:
    """Launch the Triton kernel of `write_kv`; the arguments are already checked."""
    tokens, kv_heads, head_dim = key.shape
    if tokens:
        launch(_write_kv_kernel, (tokens,))(
            key, value, cache.keys, cache.values, slots,
            key.stride(0), key.stride(1), value.stride(0), value.stride(1),
            KV_HEADS=kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=cache.keys.shape[2], **write_config(kv_heads, head_dim),
        )  # fmt: skip


@jit
def slot_start(slot, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Locate KV head 0 of a slot in a contiguous cache, in elements; the next head is BLOCK_SIZE · HEAD_DIM further."""
    return (slot // BLOCK_SIZE) * (KV_HEADS * BLOCK_SIZE * HEAD_DIM) + (slot % BLOCK_SIZE) * HEAD_DIM


@jit
def copy_heads(  # noqa: PLR0917  compiled
    source, source_head_stride, target, target_head_stride, is_live, first,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, K_BLOCK: tl.constexpr, D_BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy dimensions [first, HEAD_DIM) of all heads of one token, where `is_live`."""
    heads, lanes = tl.arange(0, K_BLOCK)[:, None], tl.arange(0, D_BLOCK)[None, :]
    begin = tl.where(is_live, first, HEAD_DIM)  # not `mask & is_live`: the interpreter turns that mask into int32
    mask = (heads < KV_HEADS) & (lanes >= begin) & (lanes < HEAD_DIM)
    values = tl.load(source + heads * source_head_stride + lanes, mask=mask, other=0.0)
    tl.store(target + heads * target_head_stride + lanes, values.to(target.dtype.element_ty), mask=mask)


@jit
def _write_kv_kernel(  # noqa: PLR0917  a kernel's arguments are positional
    key, value, key_cache, value_cache, slots, key_stride, key_head_stride, value_stride, value_head_stride,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    K_BLOCK: tl.constexpr, D_BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    start = slot_start(slot, KV_HEADS, HEAD_DIM, BLOCK_SIZE)
    between: tl.constexpr = BLOCK_SIZE * HEAD_DIM
    copy_heads(
        key + token * key_stride, key_head_stride, key_cache + start, between, slot >= 0, 0,
        KV_HEADS, HEAD_DIM, K_BLOCK, D_BLOCK,
    )  # fmt: skip
    copy_heads(
        value + token * value_stride, value_head_stride, value_cache + start, between, slot >= 0, 0,
        KV_HEADS, HEAD_DIM, K_BLOCK, D_BLOCK,
    )  # fmt: skip
