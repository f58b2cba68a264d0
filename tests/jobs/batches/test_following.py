"""Tests of batches that start after another one: taken up on its completion, failed with a reason without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.orm import Session

from jobs.accounts import budgets
from jobs.batches import following, lifecycle, sweeps
from jobs.forecasts.outlooks import outlooks
from jobs.states import BatchState
from jobs.tables import Batch, Tenant

Make = Callable[..., Any]


def due(session: Session) -> set[str]:
    """Return the batches that control workers take up, and for which they get hints."""
    found = {batch.batch_id for batch in sweeps.due_batches(session) if batch.state is BatchState.VALIDATING}
    assert set(sweeps.pick_for_validation(session, again_seconds=0)) == found
    return found


def waits_for(session: Session, batch: Batch) -> str | None:
    return outlooks(session, [batch])[batch.id].waits_for


def test_a_batch_is_taken_up_once_the_earlier_one_is_completed(session: Session, make_batch: Make) -> None:
    earlier = make_batch(state="in_progress")
    follower = make_batch(after_batch_id=earlier.id)
    assert due(session) == set()
    assert waits_for(session, follower) == f"Starts once batch '{earlier.id}' is completed, which is in_progress now."
    lifecycle.move_batch(session, earlier, BatchState.FINALIZING, outcome=BatchState.COMPLETED)
    assert following.fail_followers(session) == []
    assert follower.id not in due(session), "its files are not written yet"
    lifecycle.move_batch(session, earlier, BatchState.COMPLETED)
    assert due(session) == {follower.id}
    assert waits_for(session, follower) is None


@pytest.mark.parametrize("state", ["failed", "expired", "cancelling", "cancelled"])
def test_a_batch_fails_with_the_reason_where_the_earlier_one_does_not_complete(
    session: Session, make_batch: Make, tenant: Tenant, state: str
) -> None:
    earlier = make_batch(state=state)
    follower = make_batch(after_batch_id=earlier.id, reserved_tokens=70)
    last = make_batch(after_batch_id=follower.id)
    assert following.fail_followers(session) == [follower.id]
    assert follower.state == BatchState.FAILED
    assert follower.errors[0]["code"] == "earlier_batch_failed"
    assert earlier.id in follower.errors[0]["message"]
    assert state in follower.errors[0]["message"]
    assert budgets.quota(session, tenant.id).reserved == 0
    assert following.fail_followers(session) == [last.id], "what comes after it fails, too"
    assert due(session) == set()


def test_a_batch_fails_where_the_earlier_one_was_deleted(session: Session, make_batch: Make) -> None:
    follower = make_batch(after_batch_id=make_batch(state="completed", deleted_at="2026-01-01").id)
    begun = make_batch(after_batch_id=follower.after_batch_id, claimed_until="2126-01-01")
    assert due(session) == set()
    assert following.fail_followers(session) == [follower.id]
    assert "was deleted" in follower.errors[0]["message"]
    assert begun.state == BatchState.VALIDATING, "a worker is at it"
