"""Tests of attention by AMX against dot products; test_attention.py tests what both must do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.cpu.runtime import amx
from kernels.paged_attention import paged_attention, paged_attention_reference

pytestmark = pytest.mark.skipif(not amx.can_use(), reason="this CPU or system has no AMX for bf16")

BATCH = [(1, 300), (1, 128), (50, 131), (1, 1), (3, 3), (2, 17), (70, 200), (16, 16)]


@pytest.mark.parametrize("is_by_tiles", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size", "window"),
    [(9, 3, 64, 16, None), (4, 4, 16, 16, 40), (34, 2, 48, 32, None), (16, 1, 128, 8, 5), (2, 1, 256, 16, 130)],
)
def test_both_ways_equal_the_twin(
    monkeypatch: pytest.MonkeyPatch, attention_case: Any, is_by_tiles: bool, heads: int, kv_heads: int, head_dim: int,
    block_size: int, window: int | None,
) -> None:  # fmt: skip
    monkeypatch.setattr(amx, "can_use", lambda: is_by_tiles)
    case = attention_case(
        BATCH, heads=heads, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, window=window,
        dtype=torch.bfloat16,
    )  # fmt: skip
    actual = case.run(paged_attention)
    assert torch.isfinite(actual).all()
    torch.testing.assert_close(actual, case.run(paged_attention_reference), rtol=8e-3, atol=8e-3)


@pytest.mark.parametrize("heads", [1, 3, 5, 17])
def test_a_row_has_the_same_bits_whatever_runs_with_it(attention_case: Any, heads: int) -> None:
    case = attention_case([(1, 200), (40, 150), (7, 7), (1, 33)], heads=heads, kv_heads=1, head_dim=64, block_size=16,
                          dtype=torch.bfloat16)  # fmt: skip
    together, start = case.run(paged_attention), 0
    lengths = case.step.query_start.diff().tolist()
    for index, length in enumerate(lengths):
        alone = replace(
            case,
            query=case.query[start : start + length],
            step=replace(
                case.step,
                block_tables=case.step.block_tables[index : index + 1],
                query_start=torch.tensor([0, length], dtype=torch.int32),
                context_lens=case.step.context_lens[index : index + 1],
            ),
        )
        assert torch.equal(alone.run(paged_attention), together[start : start + length])
        start += length
