"""Inputs that the object store fails to return: their batches are put off, and fail where the input is lost.

While the store is away, batches wait and no line fails. A store that answers but lacks the object is asked again after
`SECOND_LOOK`; if it is still missing the batch fails as a whole. Finished lines are kept and billed. All chunks of a
batch read one object, so no other worker would find it.
"""

from __future__ import annotations

import logging
from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.batches.claims import BatchWork
from jobs.batches.lifecycle import lock_batch, move_batch
from jobs.batches.scan import whole_file_problem
from jobs.chunks import deferring, leasing
from jobs.chunks.leases import LEASES
from jobs.chunks.leasing import ClaimedChunk
from jobs.errors import TokenmillError
from jobs.states import BatchState
from jobs.tables import Batch

log = logging.getLogger(__name__)

SECOND_LOOK = timedelta(minutes=2)
"""Time between the two misses after which an input counts as lost."""
AWAY = timedelta(seconds=5)
"""How long a batch is put off when the store was away."""
_CODE = "file_not_found"


class PutOffError(TokenmillError):
    """The batch waits for the second look at its input."""


def wait_for_store(session: Session, claim: ClaimedChunk) -> None:
    """Put off the batch of a claimed chunk because the store is away. Raises FencedOutError."""
    deferring.defer(session, claim, period=AWAY)


def miss(session: Session, claim: ClaimedChunk) -> None:
    """Put off the batch of a claimed chunk whose input is missing, or fail it at the second look.

    Raises FencedOutError.
    """
    LEASES.hold(session, claim)  # locks the chunk before the batch
    if is_lost(session, claim.batch_id):
        fail_batch(session, claim.batch_id)
        leasing.release(session, claim)
    else:
        deferring.defer(session, claim, period=SECOND_LOOK)


def find_again(session: Session, batch_id: str) -> None:
    """Clear the record of a missing input: it was read."""
    session.execute(_FIND, {"batch_id": batch_id})


def is_lost(session: Session, batch_id: str) -> bool:
    """Record that the store lacks the input of a batch; return whether it already did long enough ago."""
    return bool(session.scalar(_MISS, {"batch_id": batch_id, "second_look": SECOND_LOOK}))


def require_lost(work: BatchWork) -> None:
    """The same for a worker that validates or finalises a batch; puts it off where the input is not lost yet.

    Raises PutOffError then.
    """
    with work.writing() as (session, batch):
        is_over = is_lost(session, batch.id)
        if not is_over:
            deferring.put_off(session, batch.id, period=SECOND_LOOK)
    if not is_over:
        raise PutOffError(f"batch {work.claim.id} is put off: the object store does not have its input")


def fail_batch(session: Session, batch_id: str) -> None:
    """Move a running batch towards failed; its workers learn of it at their next flush or heartbeat.

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
    """Record in the `errors` of a locked batch, once, that its input is lost."""
    errors = batch.errors or []
    if not any(error["code"] == _CODE for error in errors):
        message = (
            f"the content of the input file {batch.input_file_id!r} is lost; requests that had no result by then were "
            "not run. Upload the input again and run them in a new batch."
        )
        batch.errors = [*errors, whole_file_problem(_CODE, message)]


_MISS = text("""
    UPDATE batch SET input_missed_at = coalesce(input_missed_at, clock_timestamp()) WHERE id = :batch_id
    RETURNING input_missed_at <= clock_timestamp() - CAST(:second_look AS interval)
""")

_FIND = text("UPDATE batch SET input_missed_at = NULL WHERE id = :batch_id AND input_missed_at IS NOT NULL")
