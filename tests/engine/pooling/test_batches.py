"""Tests of grouping texts into batches, for any lengths and any budget."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("hypothesis")

from hypothesis import given
from hypothesis import strategies as st

from engine.pooling.batches import batches

LENGTHS = st.lists(st.integers(1, 60), max_size=60)


@given(LENGTHS, st.integers(1, 120))
def test_every_text_is_in_one_batch_and_none_is_over_the_budget_but_alone(lengths: list[int], max_tokens: int) -> None:
    found = list(batches(lengths, max_tokens=max_tokens))
    assert sorted(index for batch in found for index in batch) == list(range(len(lengths)))
    assert all(len(batch) == 1 or sum(lengths[index] for index in batch) <= max_tokens for batch in found)


@given(LENGTHS, st.integers(1, 120))
def test_texts_come_by_length_and_no_batch_could_have_taken_the_next(lengths: list[int], max_tokens: int) -> None:
    found = list(batches(lengths, max_tokens=max_tokens))
    order = [lengths[index] for batch in found for index in batch]
    assert order == sorted(lengths, reverse=True)
    for batch, following in itertools.pairwise(found):
        assert sum(lengths[index] for index in batch) + lengths[following[0]] > max_tokens
