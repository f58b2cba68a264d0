"""The sampling table: rows are gathered anew only where other sequences are sampled, or in other seats."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.sampling.table import SamplingTable
from engine.scheduling.blocks import NO_PARENT
from engine.scheduling.request import Sequence
from engine.scheduling.seat_table import SeatTable
from tests.engine.sampling.builders import plan_of, seated


def answers(seats: SeatTable, row: int, **params: Any) -> Sequence:
    return seated([1, 2], [3], row=row, table=seats, **params)


def test_the_same_rows_go_on_with_the_next_position() -> None:
    seats, table = SeatTable(2, 1), SamplingTable(2)
    sequence = answers(seats, 0, temperature=0.5, min_tokens=3, stop_token_ids=[7])
    first = table.gather(plan_of(seats, [sequence]))
    sequence.append(4)
    second = table.gather(plan_of(seats, [sequence]))
    assert second.temperature is first.temperature
    assert (first.positions.tolist(), second.positions.tolist()) == ([1], [2])
    assert first.edits is not None
    assert second.edits is not None
    sequence.append(5)
    assert table.gather(plan_of(seats, [sequence])).edits is None  # the third may be its last


def test_another_sequence_in_the_seat_has_its_own_parameters() -> None:
    seats, table = SeatTable(1, 1), SamplingTable(1)
    for temperature in (0.5, 0.25):
        sequence = answers(seats, 0, temperature=temperature)
        assert table.gather(plan_of(seats, [sequence])).temperature.tolist() == [temperature]
        seats.leave(sequence)


def test_a_sequence_that_comes_back_in_another_seat_keeps_its_edits() -> None:
    seats, table = SeatTable(2, 1), SamplingTable(2)
    sequence = answers(seats, 0, logit_bias={9: 4.0})
    table.gather(plan_of(seats, [sequence]))
    seats.leave(sequence)
    seats.take(1, sequence, chain_position=NO_PARENT)
    edits = table.gather(plan_of(seats, [sequence])).edits
    assert edits is not None
    assert edits.shifted.tolist() == [0]


def test_drafts_are_rows_of_their_own() -> None:
    seats = SeatTable(2, 1)
    sequence, other = answers(seats, 0, top_k=5), answers(seats, 1, top_k=6)
    sequence.draft_token_ids = [8, 9]
    rows = SamplingTable(2).gather(plan_of(seats, [sequence, other], [3, 1]))
    assert rows.top_k.tolist() == [5, 5, 5, 6]
    assert rows.positions.tolist() == [1, 2, 3, 1]
    assert np.array_equal(rows.is_greedy, [sequence.request.params.is_greedy] * 4)
