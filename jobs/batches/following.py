"""Batches that start after another one has completed: when they may start, and how they fail if it never completes.

This file alone decides that. A waiting batch is `validating`, with its tokens reserved and its window running. It
refers to a batch created earlier and never changes that, so there are no cycles. One that is held, or whose input is
filled, has begun: what becomes of its predecessor has no meaning any more.
"""

from __future__ import annotations

import logging

from sqlalchemy import ColumnElement, Select, exists, select, text
from sqlalchemy.orm import Session, aliased

from jobs.accounts import budgets
from jobs.batches.lifecycle import NEVER_COMPLETES, move_batch
from jobs.batches.scan import whole_file_problem
from jobs.claims.statements import ClaimSql, condition
from jobs.states import BatchState
from jobs.tables import Batch

log = logging.getLogger(__name__)

_FAILED_AT_ONCE = 100
_IS_WAITING = text("batch.state = 'validating' AND batch.after_batch_id IS NOT NULL")  # as in the partial index


def may_start() -> ColumnElement[bool]:
    """Return the condition that a validating batch may be validated: its predecessor, if any, has completed, and
    nothing holds it."""
    earlier = aliased(Batch)
    is_over = (earlier.id == Batch.after_batch_id) & (earlier.state == BatchState.COMPLETED.value)
    has_its_turn = Batch.after_batch_id.is_(None) | exists().where(is_over, earlier.deleted_at.is_(None))
    return Batch.held_by.is_(None) & (has_its_turn | Batch.source_file_id.is_not(None))


def fail_followers(session: Session) -> list[str]:
    """Fail batches whose predecessor did not complete or was deleted; their own followers fail next.

    A sweep: handles a bounded number of batches, the rest follows in the next one.
    """
    rows = session.execute(_LOCK_FAILED, execution_options={"populate_existing": True}).all()
    for batch, state in rows:
        what = "was deleted" if state == BatchState.COMPLETED else f"is {state}"
        message = f"batch {batch.after_batch_id!r}, after which this one was to start, {what}; no line was run"
        batch.errors = [whole_file_problem("earlier_batch_failed", message)]
        move_batch(session, batch, BatchState.FAILED)
        budgets.release(session, batch)
        log.info("batch failed, its earlier one did batch_id=%s after=%s", batch.id, batch.after_batch_id)
    return [batch.id for batch, _ in rows]


def _failed() -> Select[Batch, str]:
    """Return the query of batches to fail, each with the state of its predecessor."""
    earlier = aliased(Batch)
    has_failed = earlier.state.in_([state.value for state in NEVER_COMPLETES]) | earlier.deleted_at.is_not(None)
    # A claimed batch has begun: its completed predecessor may be deleted.
    has_not_begun = condition(ClaimSql("batch").is_free), Batch.held_by.is_(None), Batch.source_file_id.is_(None)
    joined = select(Batch, earlier.state).join(earlier, earlier.id == Batch.after_batch_id)
    return joined.where(_IS_WAITING, has_failed, *has_not_begun)


FAILED = _failed()
"""Batches that the next sweep fails."""
_LOCK_FAILED = (
    FAILED.order_by(Batch.id).limit(_FAILED_AT_ONCE).with_for_update(of=Batch, skip_locked=True, key_share=True)
)
