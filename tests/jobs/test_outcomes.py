"""Tests of a batch's outcome by those of its lines."""

from __future__ import annotations

import pytest

from jobs.outcomes import Outcome, standing
from jobs.states import BatchState


@pytest.mark.parametrize(
    ("completed", "failed", "outcome"),
    [
        (14, 0, Outcome.COMPLETED),
        (0, 0, Outcome.COMPLETED),
        (13, 1, Outcome.SOME_FAILED),
        (7, 7, Outcome.SOME_FAILED),
        (6, 8, Outcome.MOSTLY_FAILED),
        (1, 13, Outcome.MOSTLY_FAILED),
        (0, 14, Outcome.ALL_FAILED),
    ],
)
def test_a_completed_batch_is_called_by_what_it_came_to(completed: int, failed: int, outcome: Outcome) -> None:
    assert standing("completed", completed=completed, failed=failed) == outcome


@pytest.mark.parametrize("state", sorted(set(BatchState) - {BatchState.COMPLETED}))
def test_every_other_batch_is_called_by_its_state(state: str) -> None:
    assert standing(state, completed=1, failed=13) == state
