"""Tests of the plain PyTorch twins against independent formulas: they are the oracle of every other kernel test."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from kernels.paged import AttentionRule, LayerCache, PagedStep
from kernels.paged_attention import paged_attention_reference
from kernels.rms_norm import add_rms_norm_reference, rms_norm_reference
from kernels.rope import rope_reference
from kernels.silu_mul import silu_mul_reference
from kernels.write_kv import write_kv_reference


def test_the_rms_norm_twin_equals_torch_rms_norm() -> None:
    x, weight = torch.randn(5, 7), torch.randn(7)
    torch.testing.assert_close(rms_norm_reference(x, weight, eps=1e-5), functional.rms_norm(x, (7,), weight, eps=1e-5))


def test_the_fused_twin_normalises_the_rounded_sum() -> None:
    x, residual, weight = (torch.randn(3, 8, dtype=torch.bfloat16) for _ in range(3))
    normed, total = add_rms_norm_reference(x, residual, weight, eps=1e-6)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, rms_norm_reference(x + residual, weight, eps=1e-6))


def test_the_silu_twin_gates_the_second_half_by_the_first() -> None:
    gate, up = torch.randn(4, 6), torch.randn(4, 6)
    torch.testing.assert_close(silu_mul_reference(torch.cat((gate, up), -1)), gate / (1 + (-gate).exp()) * up)


def test_the_rope_twin_rotates_pairs_as_complex_numbers_and_leaves_the_rest() -> None:
    head_dim, rot_dim, tokens = 10, 6, 4
    query, key = torch.randn(tokens, 3, head_dim), torch.randn(tokens, 1, head_dim)
    before = query.clone()
    angles = torch.rand(9, rot_dim // 2) * 6
    positions = torch.tensor([8, 0, 3, 3])
    rope_reference(query, key, positions, torch.cat((angles.cos(), angles.sin()), -1))
    half = rot_dim // 2
    turned = torch.complex(before[..., :half], before[..., half:rot_dim]) * torch.exp(1j * angles[positions])[:, None]
    torch.testing.assert_close(query[..., :half], turned.real)
    torch.testing.assert_close(query[..., half:rot_dim], turned.imag)
    assert torch.equal(query[..., rot_dim:], before[..., rot_dim:])


def test_the_write_twin_fills_its_slots_and_skips_minus_one() -> None:
    key, value = torch.randn(3, 2, 4), torch.randn(3, 2, 4)
    key_cache, value_cache = torch.zeros(2, 2, 3, 4), torch.zeros(2, 2, 3, 4)
    write_kv_reference(key, value, LayerCache(key_cache, value_cache), torch.tensor([4, -1, 0]))
    assert torch.equal(key_cache[1, :, 1], key[0])
    assert torch.equal(value_cache[0, :, 0], value[2])
    assert key_cache.count_nonzero() == 2 * 2 * 4


@pytest.mark.parametrize("window", [None, 3])
def test_the_attention_twin_equals_dense_attention_of_the_last_rows(window: int | None) -> None:
    context_len, query_len, block_size = 11, 4, 4
    keys, values = torch.randn(2, 16, 8), torch.randn(2, 16, 8)
    query = torch.randn(query_len, 4, 8)
    table = torch.tensor([[2, 0, 3]], dtype=torch.int32)
    key_cache, value_cache = torch.full((4, 2, block_size, 8), torch.nan), torch.full((4, 2, block_size, 8), torch.nan)
    for index, block in enumerate(table[0].tolist()):
        key_cache[block] = keys[:, index * block_size : (index + 1) * block_size]
        value_cache[block] = values[:, index * block_size : (index + 1) * block_size]
    output = paged_attention_reference(
        query,
        LayerCache(key_cache, value_cache),
        PagedStep(
            block_tables=table,
            query_start=torch.tensor([0, query_len], dtype=torch.int32),
            context_lens=torch.tensor([context_len], dtype=torch.int32),
            slots=torch.empty(0, dtype=torch.int64),
            positions=torch.empty(0, dtype=torch.int64),
            max_query_len=query_len,
            max_context_len=context_len,
        ),
        AttentionRule(scale=0.3, window=window),
    )
    full = torch.ones(context_len, context_len, dtype=torch.bool)
    mask = full.tril() if window is None else full.tril() & full.triu(1 - window)
    expected = functional.scaled_dot_product_attention(
        query.transpose(0, 1),
        keys[:, :context_len].repeat_interleave(2, 0),
        values[:, :context_len].repeat_interleave(2, 0),
        attn_mask=mask[-query_len:],
        scale=0.3,
    )
    torch.testing.assert_close(output, expected.transpose(0, 1))
