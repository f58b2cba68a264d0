"""Tests of a number with its unit in the plural or singular."""

from __future__ import annotations

import pytest

from jobs.counted import counted


@pytest.mark.parametrize(
    ("number", "words", "said"),
    [
        (0, ("line",), "0 lines"),
        (1, ("line",), "1 line"),
        (1200, ("line",), "1,200 lines"),
        (1, ("batch", "batches"), "1 batch"),
        (2, ("batch", "batches"), "2 batches"),
    ],
)
def test_one_thing_is_counted_in_the_singular_alone(number: int, words: tuple[str, ...], said: str) -> None:
    assert counted(number, *words) == said
