"""The early ends of a chunk, whatever answers its lines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from jobs.settings import Settings
from workers.chunks.ends import ChunkEnds
from workers.chunks.lease import Abandoned, ChunkLease
from workers.drain import Drain


class Ended:
    """Three lines that wait to be finished."""

    def drop_all(self) -> list[int]:
        return []

    def finished(self) -> list[int]:
        return [0, 1, 2]


class LargeResults:
    """Results of which a single one is large."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.written: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.held)

    @property
    def are_large(self) -> bool:
        return bool(self.held)

    def finish(self, run: int) -> None:
        self.held.append(run)

    def write(self) -> None:
        self.written.append(self.held)
        self.held = []


def ends_of(results: LargeResults, *, is_batch_wanted: bool) -> ChunkEnds[int]:
    return ChunkEnds(
        lease=cast(ChunkLease, SimpleNamespace(is_batch_wanted=is_batch_wanted, run=lambda work: None)),
        lines=Ended(),
        results=results,
        settings=Settings(),
        drain=Drain(),
        is_wedged=lambda: False,
        monotonic=lambda: 0.0,
    )


def test_a_drain_writes_large_answers_before_the_next_one_is_made() -> None:
    results = LargeResults()
    with pytest.raises(Abandoned, match="the worker is stopping"):
        ends_of(results, is_batch_wanted=True).give_back()
    assert results.written == [[0], [1], [2]]


def test_a_cancelled_batch_keeps_the_answers_that_are_computed_and_not_yet_written() -> None:
    results = LargeResults()
    with pytest.raises(Abandoned, match="cancelled or has expired"):
        ends_of(results, is_batch_wanted=False).end_if_unwanted()
    assert results.written == [[0], [1], [2]]
