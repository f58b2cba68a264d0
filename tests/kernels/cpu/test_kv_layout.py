"""Tests of the order of the KV cache on a CPU: each number's place, blocks in plain order, and moved blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.cpu.kv_layout import PLAIN, group_size
from kernels.paged import LayerCache
from kernels.paged_attention import paged_attention
from kernels.write_kv import write_kv, write_kv_reference


@pytest.mark.parametrize(("dtype", "pair"), [(torch.float32, 1), (torch.bfloat16, 2)])
def test_16_tokens_lie_side_by_side_in_keys_and_pairs_of_tokens_in_values(dtype: torch.dtype, pair: int) -> None:
    blocks, heads, block_size, dim = 2, 3, 32, 10
    keys, values = torch.randn(2, blocks * block_size, heads, dim).to(dtype)
    shape = (blocks, heads, block_size, dim)
    caches = LayerCache(*(torch.full(shape, torch.nan, dtype=dtype) for _ in range(2)))
    write_kv(keys, values, caches, torch.arange(blocks * block_size))
    groups = [cache.view(blocks, heads, block_size // 16, 16 * dim) for cache in caches]
    for token in (0, 1, 15, 16, 17, 33, 47, 63):
        block, group, lane = token // 32, token % 32 // 16, token % 16
        own_keys = groups[0][block, :, group].view(heads, dim // pair, 16, pair)
        own_values = groups[1][block, :, group].view(heads, 16 // pair, dim, pair)
        assert torch.equal(own_keys[:, :, lane].flatten(1), keys[token])
        assert torch.equal(own_values[:, lane // pair, :, lane % pair], values[token])


@pytest.mark.parametrize(
    ("block_size", "dim", "dtype"), [(8, 64, torch.bfloat16), (16, 33, torch.bfloat16), (3, 10, torch.float32)]
)
def test_other_blocks_and_odd_heads_in_bf16_stay_in_plain_order(block_size: int, dim: int, dtype: torch.dtype) -> None:
    keys, values = torch.randn(2, 2 * block_size, 2, dim).to(dtype)
    ours, twins = torch.full((2, 2, 2, 2, block_size, dim), torch.nan, dtype=dtype)
    slots = torch.arange(2 * block_size).flip(0)
    write_kv(keys, values, LayerCache(ours[0], ours[1]), slots)
    write_kv_reference(keys, values, LayerCache(twins[0], twins[1]), slots)
    assert group_size(ours[0]) == PLAIN
    assert torch.equal(ours, twins)


@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.bfloat16])
def test_a_write_between_dtypes_rounds_as_the_twin_and_touches_no_other_slot(cache_dtype: torch.dtype) -> None:
    keys, values = torch.randn(2, 16, 1, 8)
    ours, twins = torch.zeros((2, 2, 1, 1, 16, 8), dtype=cache_dtype)
    write_kv(keys, values, LayerCache(ours[0], ours[1]), torch.arange(16))
    write_kv_reference(keys, values, LayerCache(twins[0], twins[1]), torch.arange(16))
    assert torch.equal(ours.flatten(1).sort().values, twins.flatten(1).sort().values)
    before = ours.clone()
    write_kv(keys[:2] + 100, values[:2] + 100, LayerCache(ours[0], ours[1]), torch.tensor([5, -1]))
    assert ((ours != before).flatten(1).sum(1) == 8).all()


def test_blocks_that_were_copied_are_read_as_before(attention_case: Any) -> None:
    case = attention_case([(1, 90), (20, 40)], block_size=16, head_dim=32, dtype=torch.bfloat16)
    written = case.as_written()
    order = torch.randperm(written.keys.shape[0])
    moved = LayerCache(*(part[order] for part in written))
    step = replace(case.step, block_tables=order.argsort()[case.step.block_tables.long()].int())
    assert torch.equal(paged_attention(case.query, moved, step, case.rule), case.run(paged_attention))
