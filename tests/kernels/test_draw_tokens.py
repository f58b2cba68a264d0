"""Tests of drawing among the most likely tokens: the twin against a plain count, and the op's refusals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.draw_tokens import draw_tokens
from kernels.errors import KernelInputError

PROBABILITIES = torch.tensor([[0.1, 0.4, 0.05, 0.25, 0.2]])


def draw(draws: list[float], *, top_k: int = 0, top_p: float = 1.0, probabilities: Tensor = PROBABILITIES) -> list[int]:
    count = len(draws)
    tokens = draw_tokens(
        probabilities.expand(count, -1).contiguous(),
        torch.tensor(draws),
        top_k=torch.full((count,), top_k),
        top_p=torch.full((count,), top_p),
    )
    return tokens.tolist()


def shares(**filters: float) -> list[float]:
    """Draw with evenly spaced numbers: the frequency of each token."""
    tokens = draw([(index + 0.5) / 1000 for index in range(1000)], **filters)  # type: ignore[arg-type]
    return [tokens.count(token) / 1000 for token in range(PROBABILITIES.shape[1])]


def test_without_filters_each_token_comes_as_often_as_it_is_likely() -> None:
    assert shares() == pytest.approx(PROBABILITIES[0].tolist(), abs=0.002)


def test_top_k_keeps_the_most_likely() -> None:
    assert shares(top_k=2) == pytest.approx([0.0, 0.4 / 0.65, 0.0, 0.25 / 0.65, 0.0], abs=0.002)


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    assert shares(top_p=0.6) == pytest.approx([0.0, 0.4 / 0.65, 0.0, 0.25 / 0.65, 0.0], abs=0.002)
    assert shares(top_p=0.66) == pytest.approx([0.0, 0.4 / 0.85, 0.0, 0.25 / 0.85, 0.2 / 0.85], abs=0.002)


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    assert shares(top_k=2, top_p=0.6) == [0.0, 1.0, 0.0, 0.0, 0.0]


def test_a_top_p_of_almost_nothing_keeps_the_most_likely() -> None:
    for top_p in (0.0, 1e-46, 1e-30):
        assert set(draw([0.0, 0.5, 0.999], top_p=top_p)) == {1}


def test_equally_likely_tokens_stay_together() -> None:
    even = torch.tensor([[0.25, 0.25, 0.25, 0.25]])
    assert draw([0.1, 0.3, 0.6, 0.9], top_k=1, probabilities=even) == [0, 1, 2, 3]


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    some = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]])
    assert draw([0.0, 0.4999, 0.5, 0.9999999], probabilities=some) == [1, 1, 3, 3]
    assert draw([0.5], probabilities=torch.zeros(1, 5)) == [0]


@pytest.mark.parametrize("name", ["probabilities", "draws", "top_k", "top_p"])
def test_a_tensor_of_another_dtype_is_refused(name: str) -> None:
    tensors = {
        "probabilities": PROBABILITIES,
        "draws": torch.zeros(1),
        "top_k": torch.zeros(1, dtype=torch.int64),
        "top_p": torch.ones(1),
    }
    tensors[name] = tensors[name].half()
    with pytest.raises(KernelInputError, match=f"{name} (is|are) torch.float16"):
        draw_tokens(tensors["probabilities"], tensors["draws"], top_k=tensors["top_k"], top_p=tensors["top_p"])
