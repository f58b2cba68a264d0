"""Write this step's keys and values into the paged KV cache. Knows no block table: a slot is an address.

    cache[slot // block_size, :, slot % block_size] = new        slot −1: nothing is written

No arithmetic; rounds to the cache's dtype. Source: paged KV cache, Kwon et al. 2023 (arXiv 2309.06180), section 4.
"""

from __future__ import annotations

import torch
from torch import Tensor


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Store each token's key and value at its slot; tokens with slot −1 (padding) are left out.

    Shapes: key and value `[tokens, kv_heads, head_dim]` (last axis contiguous), caches
    `[num_blocks, kv_heads, block_size, head_dim]`, slots `[tokens]` int64 = block_id · block_size + offset.
    """
    write_kv_reference(key, value, key_cache, value_cache, slots)


def write_kv_reference(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Compute `write_kv` in plain PyTorch."""
    live = slots >= 0
    block_size = key_cache.shape[2]
    block_ids, offsets = slots[live] // block_size, slots[live] % block_size
    key_cache[block_ids, :, offsets] = key[live].to(key_cache.dtype)
    value_cache[block_ids, :, offsets] = value[live].to(value_cache.dtype)


def preferred_cache_dtype(device_type: str, dtype: torch.dtype) -> torch.dtype:
    """Name the KV cache dtype that is fastest for a model of `dtype` on `device_type`; every other float works too."""
    del device_type
    return dtype
