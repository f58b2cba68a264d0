"""Tests of the early ends of a chunk, with any answerer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jobs.settings import Settings
from workers.chunks.ends import ChunkEnds
from workers.chunks.lease import Abandoned
from workers.drain import Drain


class ThreeEnded:
    """Lines that wait to be finished."""

    def drop_all(self) -> dict[int, list[int]]:
        return {}

    def ended(self) -> list[int]:
        return [0, 1, 2]


class LargeResults:
    """Results, a single one of which is large."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.written: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.held)

    @property
    def are_large(self) -> bool:
        return bool(self.held)

    def finish(self, ended: int) -> None:
        self.held.append(ended)

    def write(self) -> None:
        self.written.append(self.held)
        self.held = []

    def write_all(self) -> None:
        if self.held:
            self.write()


def ends_of(results: LargeResults, *, is_batch_wanted: bool) -> ChunkEnds:
    """Return the ends of a chunk whose worker has stopped."""
    services = SimpleNamespace(drain=Drain(), monotonic=lambda: 0.0)
    services.drain.begin(0)
    chunk: Any = SimpleNamespace(
        services=services,
        settings=Settings(),
        lease=SimpleNamespace(is_batch_wanted=is_batch_wanted, run=lambda work: None),
        lines=SimpleNamespace(has_paid=False),
        submitted=ThreeEnded(),
    )
    any_results: Any = results
    return ChunkEnds(chunk, any_results)


def test_a_drain_writes_large_answers_before_the_next_one_is_made() -> None:
    results = LargeResults()
    with pytest.raises(Abandoned, match="the worker is stopping"):
        ends_of(results, is_batch_wanted=True).give_back_if_drained()
    assert results.written == [[0], [1], [2]]


def test_a_cancelled_batch_keeps_the_answers_that_are_computed_and_not_yet_written() -> None:
    results = LargeResults()
    with pytest.raises(Abandoned, match="cancelled or has expired"):
        ends_of(results, is_batch_wanted=False).end_if_unwanted()
    assert results.written == [[0], [1], [2]]
