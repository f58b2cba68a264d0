"""The sampling table: rows are gathered anew only where other sequences are sampled, or in other seats."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.sampling.table import SamplingTable
from engine.scheduling.blocks import NO_PARENT
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Seat, Sequence
from tests.engine.sampling.builders import seated


def plan_of(*sequences: Sequence) -> StepPlan:
    """Return a plan in which each computes its newest token."""
    plan = StepPlan()
    for sequence in sequences:
        sequence.num_computed_tokens = sequence.num_tokens - 1
        plan.add(sequence, 1)
    return plan


def answers(row: int, **params: Any) -> Sequence:
    return seated([1, 2], [3], row=row, **params)


def test_the_same_rows_go_on_with_the_next_position() -> None:
    table, sequence = SamplingTable(2), answers(0, temperature=0.5, min_tokens=3, stop_token_ids=[7])
    first = table.gather(plan_of(sequence))
    sequence.append(4)
    second = table.gather(plan_of(sequence))
    assert second.temperature is first.temperature
    assert (first.positions.tolist(), second.positions.tolist()) == ([1], [2])
    assert first.edits is not None
    assert second.edits is not None
    sequence.append(5)
    assert table.gather(plan_of(sequence)).edits is None  # the third may be its last


def test_another_sequence_in_the_seat_has_its_own_parameters() -> None:
    table = SamplingTable(1)
    assert table.gather(plan_of(answers(0, temperature=0.5))).temperature.tolist() == [0.5]
    assert table.gather(plan_of(answers(0, temperature=0.25))).temperature.tolist() == [0.25]


def test_a_sequence_that_comes_back_in_another_seat_keeps_its_edits() -> None:
    table, sequence = SamplingTable(2), answers(0, logit_bias={9: 4.0})
    table.gather(plan_of(sequence))
    sequence.seat = Seat(1, [], 0, NO_PARENT)
    edits = table.gather(plan_of(sequence)).edits
    assert edits is not None
    assert edits.shifted.tolist() == [0]


def test_drafts_are_rows_of_their_own() -> None:
    sequence, other = answers(0, top_k=5), answers(1, top_k=6)
    sequence.draft_token_ids = [8, 9]
    plan = StepPlan([sequence, other], [2, 2], [3, 1], [3, 1])
    rows = SamplingTable(2).gather(plan)
    assert rows.top_k.tolist() == [5, 5, 5, 6]
    assert rows.positions.tolist() == [1, 2, 3, 1]
    assert np.array_equal(rows.is_greedy, [sequence.request.params.is_greedy] * 4)
