"""Random inputs for the kernel tests, with poison wherever a kernel must not look."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels.paged_attention import paged_attention
from kernels.write_kv import write_kv


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCase:
    """One batch over a paged cache: the tensors of `paged_attention` in call order, and its maxima.

    The caches are in plain order, `[num_blocks, kv_heads, block_size, head_dim]`, as the twin reads them.
    """

    tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
    scale: float
    window: int | None
    max_query_len: int
    max_context_len: int

    def as_written(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the tensors with caches as `write_kv` leaves them: on a CPU a block has an order of its own."""
        query, *caches, tables, starts, contexts = self.tensors
        keys, values = (cache.transpose(1, 2).flatten(0, 1) for cache in caches)
        key_cache, value_cache = (torch.full_like(cache, torch.nan) for cache in caches)
        write_kv(keys, values, key_cache, value_cache, torch.arange(keys.shape[0], device=keys.device))
        return query, key_cache, value_cache, tables, starts, contexts

    def run(self, op: Callable[..., Tensor]) -> Tensor:
        """Call `op` on this batch."""
        is_op = getattr(op, "func", op) is paged_attention
        return op(
            *(self.as_written() if is_op and self.tensors[0].is_cpu else self.tensors),
            scale=self.scale,
            window=self.window,
            max_query_len=self.max_query_len,
            max_context_len=self.max_context_len,
        )


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
    return AttentionCase(
        tensors=(
            query,
            key_cache,
            value_cache,
            tables.to(device),
            starts.to(device, torch.int32),
            contexts.to(device, torch.int32),
        ),
        scale=head_dim**-0.5,
        window=window,
        max_query_len=max(query_len for query_len, _ in lengths),
        max_context_len=max(context for _, context in lengths),
    )


@pytest.fixture
def attention_case() -> Callable[..., AttentionCase]:
    """Hand the tests the factory of attention batches."""
    return _make_attention_case


@dataclass(slots=True, kw_only=True)
class LayerCase:
    """One step's queries, keys and values as slices of a merged row, with a cache to write them to."""

    query: Tensor
    key: Tensor
    value: Tensor
    positions: Tensor
    cos_sin: Tensor
    key_cache: Tensor
    value_cache: Tensor
    slots: Tensor

    def clone(self) -> LayerCase:
        """Copy everything an op may change."""
        names = ("query", "key", "value", "key_cache", "value_cache")
        copies = {name: getattr(self, name).clone() for name in names}
        return LayerCase(**copies, positions=self.positions, cos_sin=self.cos_sin, slots=self.slots)

    @property
    def written(self) -> list[Tensor]:
        """List what an op may have changed, in fp32."""
        return [t.float() for t in (self.query, self.key, self.value, self.key_cache, self.value_cache)]


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
    return LayerCase(
        query=merged[:, :heads],
        key=merged[:, heads : heads + kv_heads],
        value=merged[:, heads + kv_heads :],
        positions=torch.randint(0, 17, (len(slots),), generator=generator).to(device),
        cos_sin=torch.cat((angles.cos(), angles.sin()), -1).to(device),
        key_cache=cache[0].to(device),
        value_cache=cache[1].to(device),
        slots=torch.tensor(slots, dtype=torch.int64, device=device),
    )


@pytest.fixture
def layer_case() -> Callable[..., LayerCase]:
    """Hand the tests the factory of rope and cache-write inputs."""
    return _make_layer_case
