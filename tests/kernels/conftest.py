"""Random inputs for the kernel tests, with poison wherever a kernel must not read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.paged import AttentionRule, LayerCache, PagedStep
from kernels.paged_attention import paged_attention
from kernels.write_kv import write_kv


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Start each test with the same random numbers, alone and after any others: no tolerance is met by luck."""
    torch.manual_seed(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCase:
    """One batch over a paged cache: the arguments of `paged_attention`."""

    query: Tensor
    cache: LayerCache
    """In plain order, as the twin reads it."""
    step: PagedStep
    rule: AttentionRule

    def as_written(self) -> LayerCache:
        """Return the cache as `write_kv` leaves it: on a CPU blocks have their own order."""
        keys, values = (part.transpose(1, 2).flatten(0, 1) for part in self.cache)
        written = LayerCache(*(torch.full_like(part, torch.nan) for part in self.cache))
        write_kv(keys, values, written, torch.arange(keys.shape[0], device=keys.device))
        return written

    def run(self, op: Callable[..., Tensor], *, num_decodes: int = 0, **rule: Any) -> Tensor:
        """Call `op` on this batch, with `rule` overriding parts of the case."""
        cache = self.as_written() if op is paged_attention and self.query.is_cpu else self.cache
        return op(self.query, cache, replace(self.step, num_decodes=num_decodes), replace(self.rule, **rule))


def _make_attention_case(
    lengths: list[tuple[int, int]],
    *,
    heads: int = 3,
    kv_heads: int = 1,
    head_dim: int = 16,
    block_size: int = 4,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    window: int | None = None,
    device: str = "cpu",
    seed: int = 0,
) -> AttentionCase:
    """Lay out sequences of (query_len, context_len) in a shuffled pool that holds NaN wherever no key belongs.

    Unused table entries name a block full of NaN; with a window, blocks wholly before it are NaN too.
    """
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-context // block_size) for _, context in lengths]
    num_blocks, width = sum(counts) + 3, max([*counts, 1]) + 1
    pool = torch.randperm(num_blocks, generator=generator).tolist()
    poison = pool.pop()
    shape = (num_blocks, kv_heads, block_size, head_dim)
    caches = [torch.full(shape, torch.nan) for _ in range(2)]
    tables = torch.full((len(lengths), width), poison, dtype=torch.int32)
    for row, (query_len, context) in enumerate(lengths):
        reach = 0 if window is None else max(context - query_len - window + 1, 0)
        for index in range(counts[row]):
            block = pool.pop()
            tables[row, index] = block
            low, high = max(reach - index * block_size, 0), min(context - index * block_size, block_size)
            for cache in caches:
                if low < high:
                    cache[block, :, low:high] = torch.randn(kv_heads, high - low, head_dim, generator=generator)
    starts = torch.tensor([0, *(query_len for query_len, _ in lengths)]).cumsum(0)
    row_of_qkv = torch.randn(int(starts[-1]), heads + 2 * kv_heads, head_dim, generator=generator)
    query = row_of_qkv.to(device, dtype)[:, :heads]
    key_cache, value_cache = (cache.to(device, cache_dtype or dtype) for cache in caches)
    contexts = torch.tensor([context for _, context in lengths])
    unread = torch.empty(0, dtype=torch.int64, device=device)
    return AttentionCase(
        query=query,
        cache=LayerCache(key_cache, value_cache),
        step=PagedStep(
            block_tables=tables.to(device),
            query_start=starts.to(device, torch.int32),
            context_lens=contexts.to(device, torch.int32),
            slots=unread,
            positions=unread,
            max_query_len=max(query_len for query_len, _ in lengths),
            max_context_len=max(context for _, context in lengths),
        ),
        rule=AttentionRule(scale=head_dim**-0.5, window=window),
    )


@pytest.fixture
def attention_case() -> Callable[..., AttentionCase]:
    """Return the factory of attention batches."""
    return _make_attention_case


@dataclass(slots=True, kw_only=True)
class LayerCase:
    """One step's queries, keys and values as slices of a merged row, with a cache to write them to."""

    query: Tensor
    key: Tensor
    value: Tensor
    cos_sin: Tensor
    cache: LayerCache
    step: PagedStep

    def clone(self) -> LayerCase:
        """Copy everything an op may change."""
        copies = {name: getattr(self, name).clone() for name in ("query", "key", "value")}
        cache = LayerCache(*(part.clone() for part in self.cache))
        return LayerCase(**copies, cos_sin=self.cos_sin, cache=cache, step=self.step)

    @property
    def written(self) -> list[Tensor]:
        """Return the tensors that an op may have changed."""
        return [self.query, self.key, self.value, *self.cache]


def _make_layer_case(
    slots: list[int],
    *,
    heads: int = 3,
    kv_heads: int = 1,
    head_dim: int = 10,
    rot_dim: int = 6,
    block_size: int = 3,
    num_blocks: int = 4,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    device: str = "cpu",
) -> LayerCase:
    generator = torch.Generator().manual_seed(len(slots))
    merged = torch.randn(len(slots), heads + 2 * kv_heads, head_dim, generator=generator).to(device, dtype)
    angles = torch.rand(17, rot_dim // 2, generator=generator) * 6
    cache = torch.full((2, num_blocks, kv_heads, block_size, head_dim), torch.nan, dtype=cache_dtype or dtype)
    unread = torch.empty(0, dtype=torch.int32, device=device)
    return LayerCase(
        query=merged[:, :heads],
        key=merged[:, heads : heads + kv_heads],
        value=merged[:, heads + kv_heads :],
        cos_sin=torch.cat((angles.cos(), angles.sin()), -1).to(device),
        cache=LayerCache(*(part.to(device) for part in cache)),
        step=PagedStep(
            block_tables=unread,
            query_start=unread,
            context_lens=unread,
            slots=torch.tensor(slots, dtype=torch.int64, device=device),
            positions=torch.randint(0, 17, (len(slots),), generator=generator).to(device),
            max_query_len=len(slots),
            max_context_len=0,
        ),
    )


@pytest.fixture
def layer_case() -> Callable[..., LayerCase]:
    """Return the factory of rope and cache-write inputs."""
    return _make_layer_case
