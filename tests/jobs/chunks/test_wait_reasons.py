"""Tests of the reasons why a batch waits, in words. Needs no database."""

from __future__ import annotations

from jobs.accounts.budgets import Quota
from jobs.chunks.wait_reasons import waits_for
from jobs.states import BatchState, Priority
from jobs.tables import Batch


def test_a_batch_that_waits_for_one_token_says_so_in_the_singular() -> None:
    batch = Batch(state=BatchState.IN_PROGRESS, priority=Priority.NORMAL, waits_for_tokens=1)
    said = waits_for(batch, Quota(limit=5, reserved=0, spent=5))
    assert str(said).startswith(
        "waiting_budget: the batch continues when there is room for 1 token, and 0 are available"
    )
