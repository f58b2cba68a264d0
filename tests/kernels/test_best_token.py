"""Tests of the most likely token: the compiled path against `torch.max`, ties and NaNs, refusals."""

from __future__ import annotations

import pytest
import torch

from kernels.best_token import NOT_FINITE, best_tokens
from kernels.errors import KernelInputError

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 31, 512, 513, 1000, 49_152])
def test_the_best_token_is_that_of_torch(vocab: int, dtype: torch.dtype) -> None:
    logits = torch.randn(9, vocab + 3).to(dtype)[:, 2 : vocab + 2]
    assert torch.equal(best_tokens(logits), logits.max(dim=-1).indices)
    assert torch.equal(best_tokens(-logits.abs()), (-logits.abs()).max(dim=-1).indices)


@pytest.mark.parametrize("dtype", DTYPES)
def test_of_equal_tokens_the_first_is_best(dtype: torch.dtype) -> None:
    logits = torch.full((5, 1200), -1.0)
    logits[0, [700, 1100]] = 2.0
    logits[1, [3, 511, 512]] = 2.0
    logits[2, 600], logits[2, 900] = -0.0, 0.0
    logits[3] = torch.finfo(dtype).min
    logits[4] = torch.finfo(dtype).max
    assert best_tokens(logits.to(dtype)).tolist() == [700, 3, 600, 0, 0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 512, 700])
def test_a_row_whose_largest_is_no_finite_number_has_no_best_token(vocab: int, dtype: torch.dtype) -> None:
    logits = torch.randn(6, vocab)
    logits[0, -1], logits[1, 0], logits[2, vocab // 2] = torch.nan, -torch.nan, torch.inf
    logits[3] = -torch.inf
    logits[4], logits[4, -1] = -torch.inf, 3.0
    found = best_tokens(logits.to(dtype)).tolist()
    assert found == [NOT_FINITE] * 4 + [vocab - 1, int(logits[5].argmax())]


def test_no_rows_have_no_tokens() -> None:
    assert best_tokens(torch.zeros(0, 7)).tolist() == []


@pytest.mark.parametrize("logits", [torch.zeros(3, 0), torch.zeros(3), torch.zeros(8, 4).T])
def test_logits_of_another_form_are_refused(logits: torch.Tensor) -> None:
    with pytest.raises(KernelInputError, match="give \\[rows, vocab\\]"):
        best_tokens(logits)
