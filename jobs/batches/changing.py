"""Change the class or the completion window of a batch that has not ended.

Chunks carry both for the queue's index, so ready and waiting ones change with their batch. A leased chunk keeps its
class, and counts there, until its worker gives it back; planned chunks get both when the batch starts. The batch is
locked first, so chunks locked by others are skipped: `queue_marks.follow_batches` corrects those being hinted.
"""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from jobs import decisions
from jobs.accounts.limits import allowed_priorities, check_priority
from jobs.batches.lifecycle import get_batch, lock_batch, not_found
from jobs.batches.submission import check_name
from jobs.call_limits import parse_window
from jobs.chunks import fairshare, queue_marks
from jobs.decisions import Kind
from jobs.errors import ConflictError, InputError
from jobs.states import AskedPriority, BatchState, Priority
from jobs.tables import Batch, Tenant

log = logging.getLogger(__name__)

_CHANGEABLE = (BatchState.VALIDATING, BatchState.IN_PROGRESS)


def change_batch(
    session: Session,
    tenant: Tenant,
    batch_id: str,
    *,
    priority: AskedPriority | None = None,
    completion_window: str | None = None,
) -> Batch:
    """Give a batch another class, another window counted from its creation, or both; None leaves a value unchanged.

    Raises NotFoundError, ForbiddenError as for a submit, InputError where the new window is already over, ConflictError
    where the batch has ended or is ending.
    """
    batch_row = get_batch(session, tenant.id, batch_id)
    if priority is not None:
        check_priority(tenant, priority)
    _check_changeable(batch_row)
    if priority in (None, batch_row.priority) and completion_window in (None, batch_row.completion_window):
        return batch_row
    batch = lock_batch(session, batch_id)
    assert batch is not None, "rows of batches stay, deleted or not"
    _check_changeable(batch)
    before = (batch.priority, batch.completion_window)
    if completion_window is not None:
        _set_window(session, batch, completion_window)
    if priority is not None and priority.value != batch.priority:
        _check_covered(batch)
        _set_priority(session, batch, priority)
    session.flush()
    if batch.state == BatchState.IN_PROGRESS and batch.model is not None:
        session.execute(_CHANGE_CHUNKS, _values(batch))
        queue_marks.mark(session, model=batch.model, priority=batch.priority, tenant_id=batch.tenant_id)
    names = zip(("class", "window"), before, (batch.priority, batch.completion_window), strict=True)
    changes = [f"{name} {was} → {now}" for name, was, now in names if was != now]
    if changes:
        decisions.note(session, batch.id, Kind.CHANGED, detail=" and ".join(changes))
    log.info("batch changed batch_id=%s priority=%s window=%s", batch.id, batch.priority, batch.completion_window)
    return batch


def rename(session: Session, tenant_id: str, batch_id: str, name: str) -> Batch:
    """Give a batch another name, in any state. Raises NotFoundError, and InputError for a name that is not allowed."""
    check_name(name)
    get_batch(session, tenant_id, batch_id)
    batch = lock_batch(session, batch_id)
    if batch is None or batch.deleted_at is not None:  # deleted between the two reads
        raise not_found(batch_id)
    batch.name = name
    session.flush()
    return batch


def is_changeable(batch: Batch) -> bool:
    """Return whether its window, and where there is a choice its class, can change."""
    return batch.state in _CHANGEABLE


def priorities_to_choose(tenant: Tenant, batch: Batch) -> list[AskedPriority]:
    """Return the classes that a batch may change to; none where it keeps its own."""
    return [] if batch.priority == Priority.OVERFLOW else allowed_priorities(tenant)


def _check_changeable(batch: Batch) -> None:
    if not is_changeable(batch):
        raise ConflictError(
            f"Cannot change a batch with status '{batch.state}': it must be validating or in progress.",
            code="batch_not_changeable",
        )


def _check_covered(batch: Batch) -> None:
    if batch.priority == Priority.OVERFLOW:
        raise ConflictError(
            "The class of this batch is overflow: your token budget did not cover it. Cancel it, and submit what is "
            "left once there is room (`GET /v1/quota`).",
            code="batch_not_changeable",
        )


def _set_window(session: Session, batch: Batch, completion_window: str) -> None:
    expires_at = batch.created_at + parse_window(completion_window)
    now = session.scalar(select(func.clock_timestamp()))
    assert now is not None
    if expires_at <= now:
        age = int((now - batch.created_at).total_seconds())
        raise InputError(
            f"completion_window is {completion_window!r} from the batch's creation, which was {age:,} s ago: it would "
            "be over. Give a longer one, or cancel the batch.",
            param="completion_window",
            code="invalid_value",
        )
    batch.completion_window = completion_window
    batch.expires_at = expires_at


def _set_priority(session: Session, batch: Batch, priority: AskedPriority) -> None:
    batch.priority = priority.value
    session.flush()
    if batch.state == BatchState.IN_PROGRESS and batch.model is not None:
        # its tenant may have no other work in this class
        fairshare.activate(session, model=batch.model, priority=priority.value, tenant_id=batch.tenant_id)


def _values(batch: Batch) -> dict[str, Any]:
    return {"batch_id": batch.id, "priority": batch.priority, "expires_at": batch.expires_at}


_CHANGE_CHUNKS = text("""
    UPDATE chunk SET priority = :priority, expires_at = :expires_at, hinted_at = NULL
    WHERE id IN (
        SELECT id FROM chunk WHERE batch_id = :batch_id AND (state = 'ready' OR state = 'waiting' OR state = 'deferred')
            AND (priority, expires_at) IS DISTINCT FROM (:priority, CAST(:expires_at AS timestamptz))
        FOR NO KEY UPDATE SKIP LOCKED
    )
""")
