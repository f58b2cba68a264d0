"""Batches whose input the object store has lost: they fail as a whole, and what was finished is kept and billed.

All chunks of a batch read one object, so what one worker misses no other will find.
"""

from __future__ import annotations

import logging

from sqlalchemy.orm import Session

from jobs.batches.lifecycle import lock_batch, move_batch
from jobs.batches.scan import whole_file_problem
from jobs.chunks import leasing
from jobs.chunks.leasing import ClaimedChunk
from jobs.states import BatchState
from jobs.tables import Batch

log = logging.getLogger(__name__)

_CODE = "file_not_found"


def give_up_claim(session: Session, claim: ClaimedChunk) -> None:
    """Fail the batch of a claimed chunk and withdraw the chunk. Raises FencedOutError."""
    leasing.hold(session, claim)  # locks the chunk before the batch
    fail_batch(session, claim.batch_id)
    leasing.release(session, claim)


def fail_batch(session: Session, batch_id: str) -> None:
    """Move a running batch towards failed; its workers learn it at their next flush or heartbeat.

    Lock the chunk that missed the input first.
    """
    batch = lock_batch(session, batch_id)
    if batch is None or batch.state != BatchState.IN_PROGRESS:
        return
    name_missing_input(batch)
    move_batch(session, batch, BatchState.FINALIZING, outcome=BatchState.FAILED)
    leasing.withdraw_open(session, batch_id)
    log.error("batch fails, its input is lost batch_id=%s file_id=%s", batch_id, batch.input_file_id)


def name_missing_input(batch: Batch) -> None:
    """Say in the `errors` of a locked batch, once, that its input is lost."""
    errors = batch.errors or []
    if not any(error["code"] == _CODE for error in errors):
        message = (
            f"the content of the input file {batch.input_file_id!r} is lost; requests that had no result by then were "
            "not run. Upload the input again and run them in a new batch."
        )
        batch.errors = [*errors, whole_file_problem(_CODE, message)]
