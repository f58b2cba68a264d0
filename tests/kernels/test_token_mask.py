"""Tests of the token mask: the twin against a loop over bits, the CPU path against the twin, refusals."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.errors import KernelInputError
from kernels.token_mask import apply_token_mask, apply_token_mask_reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def random_mask(lines: int, vocab: int) -> torch.Tensor:
    """Draw words of all kinds: random ones, all allowed, all forbidden."""
    words = -(-vocab // 32)
    mask = torch.randint(-(2**31), 2**31 - 1, (lines, words), dtype=torch.int32)
    kind = torch.randint(0, 3, (lines, words))
    mask[kind == 1] = -1
    mask[kind == 2] = 0
    return mask


def test_the_token_mask_twin_forbids_exactly_the_tokens_whose_bit_is_0() -> None:
    logits, mask = torch.randn(4, 70), random_mask(2, 70)
    before, rows = logits.clone(), [3, 1]
    apply_token_mask_reference(logits, mask, torch.tensor(rows))
    for line, row in enumerate(rows):
        for token in range(70):
            is_allowed = int(mask[line, token // 32]) >> (token % 32) & 1
            assert logits[row, token] == (before[row, token] if is_allowed else -math.inf)
    assert torch.equal(logits[[0, 2]], before[[0, 2]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 1000, 65_537])
def test_the_token_mask_equals_its_twin(vocab: int, dtype: torch.dtype) -> None:
    logits = torch.randn(7, vocab + 3).to(dtype)[:, :vocab]
    logits[0, 0] = math.nan
    mask, rows = random_mask(5, vocab), torch.tensor([6, 0, 2, 3, 5])
    expected = logits.clone()
    apply_token_mask(logits, mask, rows)
    apply_token_mask_reference(expected, mask, rows)
    torch.testing.assert_close(logits, expected, rtol=0, atol=0, equal_nan=True)


def test_no_masked_rows_change_nothing() -> None:
    logits = torch.randn(2, 40)
    before = logits.clone()
    apply_token_mask(logits, torch.zeros(0, 2, dtype=torch.int32), torch.zeros(0, dtype=torch.int64))
    assert torch.equal(logits, before)


def test_a_mask_that_does_not_fit_is_refused() -> None:
    logits, rows = torch.randn(2, 40), torch.tensor([0])
    with pytest.raises(KernelInputError, match=r"mask torch\.int32 \(1, 1\)"):
        apply_token_mask(logits, torch.zeros(1, 1, dtype=torch.int32), rows)
    with pytest.raises(KernelInputError, match=r"mask torch\.int64"):
        apply_token_mask(logits, torch.zeros(1, 2, dtype=torch.int64), rows)
    with pytest.raises(KernelInputError, match="a row outside the 2 rows"):
        apply_token_mask(logits, torch.zeros(1, 2, dtype=torch.int32), torch.tensor([2]))
