"""Tests of concurrent batches: each is computed once, on one thread, and torch's threads are as before."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from engine.pooling.side_by_side import compute_each


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_two_batches_are_computed_at_once_each_on_one_thread() -> None:
    both, found = threading.Barrier(2, timeout=60), []

    def compute(batch: int) -> None:
        both.wait()  # one after the other would never pass it
        found.append((batch, torch.get_num_threads()))

    compute_each(compute, [0, 1])
    assert sorted(found) == [(0, 1), (1, 1)]
    assert torch.get_num_threads() == 2


def test_one_batch_has_all_threads() -> None:
    found: list[int] = []
    compute_each(lambda _: found.append(torch.get_num_threads()), ["only"])
    assert found == [2]


def test_an_error_is_raised_and_leaves_the_threads_as_they_were() -> None:
    def compute(batch: int) -> None:
        raise ValueError(f"batch {batch}")

    with pytest.raises(ValueError, match="batch 0"):
        compute_each(compute, [0, 1, 2])
    assert torch.get_num_threads() == 2
