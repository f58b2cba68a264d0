"""Edits of logits against plain formulas and against transformers' logits processors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import NoBadWordsLogitsProcessor, RepetitionPenaltyLogitsProcessor

from engine.errors import InvalidParamsError
from engine.params import SamplingParams
from engine.sampling.edits import EditBook
from engine.scheduling.request import Sequence
from tests.engine.sampling.builders import seated

VOCAB = 40


def edited(book: EditBook, owners: list[Sequence], logits: Tensor, offsets: list[int] | None = None) -> Tensor:
    """Return fp32 logits after the edits; every row."""
    seats = np.array([sequence.row for sequence in owners])
    edits = book.edits(owners, seats, np.array(offsets or [0] * len(owners), dtype=np.int64), [])
    logits = logits.clone()
    if edits is None:
        return logits.float()
    edits.forbid(logits)
    shifted = edits.shift(logits)
    result = logits.float()
    if shifted is not None:
        shifted.write_over(result, np.arange(len(owners)))
    return result


def after_take(*owners: Sequence) -> EditBook:
    book = EditBook(max((sequence.row for sequence in owners), default=0) + 1)
    for sequence in owners:
        book.write(sequence)
    return book


def logits_of(num_rows: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 4).to(dtype)


PROMPT, OUTPUT = [3, 4, 4, 5, 39], [7, 7, 7, 4, 0]


@pytest.mark.parametrize("penalty", [0.5, 1.3, 2.0])
def test_the_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    logits = logits_of(1)
    sequence = seated(PROMPT, OUTPUT, repetition_penalty=penalty)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([PROMPT + OUTPUT]), logits.clone())
    assert torch.equal(edited(after_take(sequence), [sequence], logits), expected)


def test_frequency_and_presence_count_the_output_only() -> None:
    logits = logits_of(1)
    sequence = seated(PROMPT, OUTPUT, frequency_penalty=0.5, presence_penalty=-0.25)
    counts = torch.bincount(torch.tensor(OUTPUT), minlength=VOCAB).float()
    expected = logits - 0.5 * counts + 0.25 * (counts > 0)
    assert torch.equal(edited(after_take(sequence), [sequence], logits), expected)


def test_bias_comes_first_then_repetition_then_frequency_and_presence() -> None:
    logits = logits_of(1)
    penalties: dict[str, Any] = {"frequency_penalty": 0.5, "presence_penalty": 1.0, "repetition_penalty": 1.5}
    sequence = seated(PROMPT, OUTPUT, logit_bias={7: 30.0, 5: -9.5, 20: 1.25}, **penalties)
    expected = logits.clone()
    expected[0, [7, 5, 20]] += torch.tensor([30.0, -9.5, 1.25])
    expected = RepetitionPenaltyLogitsProcessor(1.5)(torch.tensor([PROMPT + OUTPUT]), expected)
    counts = torch.bincount(torch.tensor(OUTPUT), minlength=VOCAB).float()
    expected = expected - 0.5 * counts - (counts > 0).float()
    assert torch.allclose(edited(after_take(sequence), [sequence], logits), expected)


def test_a_penalty_smaller_than_a_step_of_bf16_still_counts() -> None:
    logits = torch.full((1, VOCAB), 20.0, dtype=torch.bfloat16)
    sequence = seated(PROMPT, OUTPUT, presence_penalty=0.01)
    assert edited(after_take(sequence), [sequence], logits)[0, 7] == pytest.approx(19.99)


def test_counts_grow_with_the_output_and_with_the_drafts_before_a_row() -> None:
    book = after_take(sequence := seated(PROMPT, [], frequency_penalty=1.0))
    logits = torch.zeros(1, VOCAB)
    assert torch.equal(edited(book, [sequence], logits), logits)
    for token_id in (7, 7, 9):
        sequence.append(token_id)
    sequence.draft_token_ids = [9, 7, 11]
    rows = edited(book, [sequence] * 4, torch.zeros(4, VOCAB), [0, 1, 2, 3])
    assert rows[:, [7, 9, 11]].tolist() == [[-2, -1, 0], [-2, -2, 0], [-3, -2, 0], [-3, -2, -1]]
    sequence.draft_token_ids = []
    sequence.append(9)
    assert edited(book, [sequence], torch.zeros(1, VOCAB))[0, [7, 9, 11]].tolist() == [-2, -2, 0]


def test_a_new_owner_of_a_seat_starts_without_the_old_ones_tokens() -> None:
    penalties: dict[str, Any] = {"frequency_penalty": 1.0, "repetition_penalty": 2.0}
    book = after_take(old := seated([1, 2], [3, 3], **penalties))
    edited(book, [old], logits_of(1))
    book.write(plain := seated([1, 2], [4]))
    assert torch.equal(edited(book, [plain], logits_of(1)), logits_of(1))
    book.write(new := seated([8], [9], **penalties))
    fresh = after_take(new)
    assert torch.equal(edited(book, [new], logits_of(1)), edited(fresh, [new], logits_of(1)))


def test_a_row_is_the_same_alone_and_among_others() -> None:
    wishes: list[dict[str, Any]] = [
        {},
        {"repetition_penalty": 1.7},
        {"allowed_token_ids": [3, 9, 12], "bad_words_token_ids": [[9]]},
        {"logit_bias": {4: 5.0}},
        {"frequency_penalty": 1.5, "bad_words_token_ids": [[4, 0, 6], [2]]},
        {"presence_penalty": -2.0, "logit_bias": {7: -100.0}, "allowed_token_ids": [7, 8]},
    ]
    owners = [seated([row, 5, *range(row)], [*OUTPUT, row], row=row, **wish) for row, wish in enumerate(wishes)]
    logits = logits_of(len(owners), dtype=torch.bfloat16)
    together = edited(after_take(*owners), owners, logits)
    for row, sequence in enumerate(owners):
        alone = edited(after_take(sequence), [sequence], logits[row : row + 1])
        assert torch.equal(alone[0], together[row])
    assert torch.equal(together[0], logits[0].float())


def test_only_allowed_tokens_keep_their_logits() -> None:
    sequence = seated(PROMPT, [], allowed_token_ids=[0, 8, 39])
    row = edited(after_take(sequence), [sequence], logits_of(1))[0]
    assert row.isfinite().nonzero()[:, 0].tolist() == [0, 8, 39]
    assert torch.equal(row[[0, 8, 39]], logits_of(1)[0, [0, 8, 39]])


def test_allowed_tokens_are_each_row_s_own_in_any_order_and_number() -> None:
    lists = [[39, 31, 32, 31], [0], list(range(VOCAB))]
    sequences = [seated(PROMPT, [], row=row, allowed_token_ids=ids) for row, ids in enumerate(lists)]
    plain = seated(PROMPT, [], row=3)
    logits = logits_of(4, dtype=torch.bfloat16)
    rows = edited(after_take(*sequences, plain), [*sequences, plain], logits)
    for row, ids in enumerate([*lists, lists[-1]]):
        assert rows[row].isfinite().nonzero()[:, 0].tolist() == sorted(set(ids))
    assert torch.equal(rows[2:], logits[2:].float())


WORDS = [[6], [7, 8], [4, 0, 9], [0, 10], [3, 4, 11]]


@pytest.mark.parametrize("output", [[], [7], [4, 0], [1, 4, 0], [0, 4], [3, 4], [9, 9, 7]])
def test_bad_words_are_those_of_transformers_over_the_output(output: list[int]) -> None:
    sequence = seated([20], output, bad_words_token_ids=WORDS)
    logits = logits_of(1)
    given = torch.tensor([output], dtype=torch.int64).reshape(1, -1)
    expected = NoBadWordsLogitsProcessor(WORDS, eos_token_id=[])(given, logits.clone())
    assert torch.equal(edited(after_take(sequence), [sequence], logits), expected)


def test_a_word_begun_in_the_prompt_is_not_a_bad_word() -> None:
    sequence = seated([3, 4], [], bad_words_token_ids=[[4, 11]])
    assert edited(after_take(sequence), [sequence], logits_of(1)).isfinite().all()


@pytest.mark.parametrize(("offset", "banned"), [(0, []), (1, []), (2, [9]), (3, [])])
def test_a_word_may_be_begun_by_drafts(offset: int, banned: list[int]) -> None:
    sequence = seated([20], [1], bad_words_token_ids=[[4, 0, 9]])
    sequence.draft_token_ids = [4, 0, 5]
    row = edited(after_take(sequence), [sequence], logits_of(1), [offset])[0]
    assert row.isinf().nonzero()[:, 0].tolist() == banned


def test_a_word_may_be_begun_in_the_output_and_go_on_in_drafts() -> None:
    sequence = seated([20], [1, 4], bad_words_token_ids=[[4, 0, 9]])
    sequence.draft_token_ids = [0]
    row = edited(after_take(sequence), [sequence], logits_of(1), [1])[0]
    assert row.isinf().nonzero()[:, 0].tolist() == [9]


def test_a_request_without_wishes_costs_no_edits() -> None:
    sequence = seated(PROMPT, OUTPUT)
    assert after_take(sequence).edits([sequence], np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), []) is None


@pytest.mark.parametrize(
    "bad",
    [
        {"presence_penalty": 2.5},
        {"frequency_penalty": -2.5},
        {"repetition_penalty": 0.0},
        {"logit_bias": {5: 101.0}},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": [1]},
        {"allowed_token_ids": []},
        {"allowed_token_ids": [5], "bad_words_token_ids": [[5]]},
        {"allowed_token_ids": [5, 6], "bad_words_token_ids": [[6, 5], [5, 6]]},
        {"bad_words": [" "]},
        {"bad_words_token_ids": [[]]},
    ],
)
def test_a_wish_out_of_range_is_refused_by_name(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidParamsError, match=next(iter(bad))):
        SamplingParams(**bad)
