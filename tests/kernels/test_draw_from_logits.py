"""Tests of draws from a distribution: against inversion in float64, rows alone and together, impossible tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.best_token import NOT_FINITE
from kernels.draw_from_logits import draw_from_logits
from kernels.errors import KernelInputError

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def draw(logits: Tensor, draws: Tensor, temperature: float = 1.0) -> Tensor:
    return draw_from_logits(logits, torch.arange(len(logits)), torch.full((len(logits),), temperature), draws)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 17, 512, 513, 3000])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_a_draw_is_the_inverse_of_the_cumulative_weights(vocab: int, dtype: torch.dtype, temperature: float) -> None:
    logits = (3 * torch.randn(40, vocab + 2)).to(dtype)[:, 1 : vocab + 1]
    draws = torch.rand(40)
    tokens = draw(logits, draws, temperature)
    cumulative = (logits.double() / temperature).softmax(-1).cumsum(-1)
    upper = cumulative.gather(-1, tokens[:, None])[:, 0]
    lower = torch.where(tokens > 0, cumulative.gather(-1, (tokens - 1).clamp(min=0)[:, None])[:, 0], 0.0)
    assert (lower - 1e-6 <= draws).all()
    assert (draws <= upper + 1e-6).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_draws_the_same_token_alone_and_among_others(dtype: torch.dtype) -> None:
    logits, draws, temperature = torch.randn(9, 2000).to(dtype), torch.rand(5), torch.rand(5) + 0.1
    rows = torch.tensor([8, 0, 3, 3, 7])
    together = draw_from_logits(logits, rows, temperature, draws)
    for index in range(5):
        own = logits[rows[index]][None].contiguous()
        alone = draw_from_logits(own, torch.tensor([0]), temperature[index : index + 1], draws[index : index + 1])
        assert alone.item() == together[index].item()


def test_a_token_of_weight_zero_is_never_drawn() -> None:
    logits = torch.full((4000, 1100), -torch.inf)
    logits[:, 20:30], logits[:, 700], logits[:, 1099] = 0.0, 1.0, -200.0
    tokens = draw(logits, torch.arange(4000) / 4000)
    assert set(tokens.tolist()) == {*range(20, 30), 700}


def test_the_smallest_and_largest_draw_are_the_first_and_last_token_with_weight() -> None:
    logits = torch.zeros(2, 600)
    logits[:, :5] = logits[:, 590:] = -torch.inf
    assert draw(logits, torch.tensor([0.0, 1.0 - 2**-23])).tolist() == [5, 589]


def test_a_tiny_temperature_leaves_the_most_likely() -> None:
    logits = torch.randn(50, 700)
    likely = logits.argmax(-1)
    logits[torch.arange(50), likely] += 1  # two logits may be within some temperatures of each other
    assert torch.equal(draw(logits, torch.rand(50), 1e-5), likely)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_whose_largest_logit_is_no_finite_number_draws_no_token(dtype: torch.dtype) -> None:
    logits = torch.full((4, 700), -torch.inf)
    logits[1, 3], logits[2, 699], logits[3, 5] = torch.nan, torch.inf, 1.0
    tokens = draw(logits.to(dtype), torch.full((4,), 0.5))
    assert tokens.tolist() == [NOT_FINITE, NOT_FINITE, NOT_FINITE, 5]


def test_what_does_not_fit_is_refused() -> None:
    logits, one = torch.randn(2, 40), torch.ones(1)
    with pytest.raises(KernelInputError, match="give rows that exist"):
        draw_from_logits(logits, torch.tensor([2]), one, 0 * one)
    with pytest.raises(KernelInputError, match="give int64 rows"):
        draw_from_logits(logits, torch.tensor([0, 1]), one, 0 * one)
    with pytest.raises(KernelInputError, match=r"give \[num_rows, vocab\]"):
        draw_from_logits(logits.T, torch.tensor([0]), one, 0 * one)
