from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.errors import InvalidParamsError
from engine.grammars.masks import RowMasks
from engine.outputs import BROKEN_ROW, NO_TOKEN, TokenLogprobs
from engine.params import SamplingParams
from engine.sampling.edits import Edits
from engine.sampling.penalties import Pairs
from engine.sampling.randomness import uniforms
from engine.sampling.sampler import Samples, sample
from engine.sampling.table import SamplingRows, neutral_rows


def read(samples: Samples) -> tuple[list[int], dict[int, TokenLogprobs]]:
    tokens, logprobs = samples.read()
    return tokens.tolist(), logprobs


def rows(count: int, *, seed: int = 11, edits: Edits | None = None, **fields: float) -> SamplingRows:
    """Return `count` equal rows; positions run on, so that each draws its own number."""
    neutral = neutral_rows(count)
    columns = {name: np.full_like(getattr(neutral, name), value) for name, value in {"seeds": seed, **fields}.items()}
    return replace(neutral, positions=np.arange(count), edits=edits, **columns)


LOGITS = torch.tensor([0.0, 1.0, 2.0, 3.0, 2.5, -1.0])


def frequencies(count: int = 20_000, **fields: Any) -> Tensor:
    tokens, _ = read(sample(LOGITS.repeat(count, 1), rows(count, **fields)))
    return torch.bincount(torch.tensor(tokens), minlength=6) / count


def test_draws_follow_the_softmax() -> None:
    assert torch.allclose(frequencies(), LOGITS.softmax(-1), atol=0.012)


def test_temperature_flattens_or_sharpens() -> None:
    assert torch.allclose(frequencies(temperature=2.0), (LOGITS / 2).softmax(-1), atol=0.012)


def test_top_k_leaves_the_k_most_likely() -> None:
    expected = torch.zeros(6)
    expected[[3, 4]] = LOGITS[[3, 4]].softmax(-1)
    assert torch.allclose(frequencies(top_k=2), expected, atol=0.012)


def test_top_p_leaves_the_smallest_set_that_reaches_p() -> None:
    expected = torch.zeros(6)
    expected[[3, 4, 2]] = LOGITS[[3, 4, 2]].softmax(-1)
    assert torch.allclose(frequencies(top_p=0.85), expected, atol=0.012)


@pytest.mark.parametrize("top_k", [0, 3])
def test_a_top_p_that_is_zero_in_fp32_leaves_the_most_likely(top_k: int) -> None:
    assert frequencies(50, top_p=1e-46, top_k=top_k)[3] == 1.0


def test_min_p_leaves_what_is_near_the_most_likely() -> None:
    expected = torch.zeros(6)
    expected[[3, 4]] = LOGITS[[3, 4]].softmax(-1)
    assert torch.allclose(frequencies(min_p=0.5), expected, atol=0.012)


def test_top_p_applies_to_what_top_k_left() -> None:
    # Of the two most likely (62 % and 38 %) the first alone reaches 60 %.
    assert frequencies(top_k=2, top_p=0.6)[3] == 1.0


def test_top_p_looks_past_the_first_candidates_when_it_must() -> None:
    flat = torch.zeros(400, 5000)
    tokens, _ = read(sample(flat, rows(400, top_p=0.99)))
    assert len(set(tokens)) > 350


def test_a_greedy_row_takes_the_most_likely() -> None:
    assert read(sample(LOGITS[None].clone(), rows(1, is_greedy=True)))[0] == [3]


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits = torch.full((5000, 50), -torch.inf)
    logits[:, 20:30] = 0.0
    for fields in ({}, {"top_p": 0.9}, {"top_k": 40}):
        tokens, _ = read(sample(logits.clone(), rows(5000, **fields)))
        assert all(20 <= token < 30 for token in tokens)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 3000)
    mixed = rows(6)
    mixed.top_k[:] = [0, 5, 0, 80, 0, 0]
    mixed.top_p[:] = [1.0, 0.9, 0.5, 1.0, 0.99, 1.0]
    mixed.is_greedy[:] = [False, False, False, False, False, True]
    together, _ = read(sample(logits.clone(), mixed))
    for row in range(6):
        one = rows(1, top_k=mixed.top_k[row], top_p=mixed.top_p[row], is_greedy=mixed.is_greedy[row])
        one.positions[:] = row
        assert read(sample(logits[row : row + 1].clone(), one))[0] == [together[row]]


def test_forbidden_tokens_are_not_taken_but_keep_their_logprob() -> None:
    edits = Edits(forbidden=Pairs.of([0], [[3]]))
    tokens, logprobs = read(sample(LOGITS[None].clone(), rows(1, is_greedy=True, edits=edits, num_logprobs=2)))
    assert tokens == [4]
    assert logprobs[0].top_token_ids == [3, 4]
    assert logprobs[0].rank == 2
    assert logprobs[0].logprob == pytest.approx(float(LOGITS.log_softmax(-1)[4]), abs=1e-5)


def test_logprobs_are_of_the_raw_distribution() -> None:
    _, logprobs = read(sample(LOGITS[None].clone(), rows(1, temperature=5.0, top_k=2, num_logprobs=3)))
    assert logprobs[0].top_logprobs == pytest.approx(LOGITS.log_softmax(-1)[[3, 4, 2]].tolist(), abs=1e-5)


def test_no_logprobs_cost_nothing_when_none_are_asked_for() -> None:
    assert read(sample(LOGITS[None].clone(), rows(1)))[1] == {}


def test_random_numbers_are_even_and_differ_between_neighbouring_seeds() -> None:
    seeds = np.arange(1000, dtype=np.uint64)
    draws = np.concatenate([uniforms(seeds, np.full(1000, index)) for index in range(20)])
    assert draws.min() >= 0.0
    assert draws.max() < 1.0
    assert np.histogram(draws, 10, (0, 1))[0] == pytest.approx(2000, rel=0.12)
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.03


@pytest.mark.parametrize(
    "bad",
    [
        {"n": 0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": 10**400},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -2},
        {"min_p": 2.0},
        {"max_tokens": -1},
        {"min_tokens": 5, "max_tokens": 4},
        {"logprobs": 21},
        {"stop": [""]},
        {"stop": "x", "detokenize": False},
        {"stop_token_ids": [-1]},
        {"seed": 2**63},
        {"n": True},
        {"max_tokens": "5"},
        {"ignore_eos": "false"},
        {"detokenize": None},
        {"stop": 5},
        {"stop": {"a": 1}},
        {"stop": b"a"},
        {"stop": ["a", None]},
        {"stop": ["\ud800"]},
        {"stop_token_ids": 5},
        {"bad_words": ["a\udfff"]},
        {"bad_words_token_ids": [5]},
        {"bad_words_token_ids": [[5], ["6"]]},
        {"allowed_token_ids": 5},
        {"logit_bias": {"5": 1.0}},
        {"logit_bias": {5: "1"}},
        {"logit_bias": {5: float("nan")}},
        {"logit_bias": [(5, 1.0)]},
        {"structured": "[0-9]+"},
        {"ignore_eos": np.int64(1)},
        {"stop": np.array(5)},
        {"stop_token_ids": np.array(5)},
        {"bad_words_token_ids": np.array([5])},
    ],
)
def test_a_parameter_out_of_range_is_refused_by_name(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidParamsError, match=next(iter(bad))):
        SamplingParams(**bad)


def test_values_may_be_given_as_numpy_makes_them() -> None:
    given = SamplingParams(
        max_tokens=np.int64(5),  # type: ignore[arg-type]
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        top_p=np.float64(0.5),
        stop_token_ids=np.array([5, 6]),  # type: ignore[arg-type]
        bad_words_token_ids=np.array([[5, 6]]),  # type: ignore[arg-type]
        logit_bias={np.int64(7): np.float32(0.5)},  # type: ignore[dict-item]
        ignore_eos=np.True_,  # type: ignore[arg-type]
        detokenize=np.array(True),  # type: ignore[arg-type]
        seed=np.array(7),  # type: ignore[arg-type]
        stop=np.array("a"),  # type: ignore[arg-type]
        bad_words=np.array(["b"]),  # type: ignore[arg-type]
    )
    wanted = SamplingParams(
        max_tokens=5,
        temperature=0.5,
        top_p=0.5,
        stop_token_ids=(5, 6),
        bad_words_token_ids=((5, 6),),
        logit_bias={7: 0.5},
        ignore_eos=True,
        seed=7,
        stop="a",
        bad_words=["b"],
    )
    assert repr(given) == repr(wanted)  # so that no numpy type is left, which no message to an engine could carry


def test_a_map_of_biases_that_changes_later_changes_no_parameters() -> None:
    biases = {5: 1.0}
    params = SamplingParams(logit_bias=biases)
    biases[5] = float("nan")
    assert params.logit_bias == {5: 1.0}


BROKEN = {
    "nan": [0.0, float("nan"), 1.0],
    "nan among minus infinity": [float("-inf"), float("nan"), float("-inf")],
    "infinity": [0.0, float("inf"), 1.0],
    "nothing finite": [float("-inf")] * 3,
}
WAYS: list[dict[str, float]] = [{"is_greedy": True}, {}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}]


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("edits", [None, Edits(forbidden=Pairs.of([0, 1], [[1], [0, 1, 2]]))])
def test_a_broken_row_is_told_from_one_whose_tokens_are_all_forbidden(
    name: str, way: dict[str, Any], edits: Edits | None
) -> None:
    logits = torch.tensor([BROKEN[name], [1.0, 2.0, 3.0], [float("-inf"), 5.0, float("-inf")]])
    tokens, _ = read(sample(logits, rows(3, edits=edits, **way)))
    assert tokens[0] == BROKEN_ROW
    assert tokens[1] == NO_TOKEN if edits is not None else tokens[1] >= 0
    assert tokens[2] == 1


@pytest.mark.parametrize("way", WAYS)
def test_masks_that_leave_nothing_are_no_broken_rows(way: dict[str, Any]) -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [1.0, float("nan"), 3.0], [1.0, 2.0, 3.0]])
    asked = rows(3, **way)
    asked.masks = RowMasks(torch.tensor([[0], [0], [0b010]], dtype=torch.int32), torch.arange(3))
    assert read(sample(logits, asked))[0] == [NO_TOKEN, BROKEN_ROW, 1]
