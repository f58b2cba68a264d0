"""Lifecycle of batches: create, get, list and cancel; the only writer of a batch's state.

Locks in the order chunk → batch → budget.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, bindparam, func, select, text, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningUpdate

from jobs import hooks
from jobs.accounts import budgets
from jobs.accounts.limits import Limits, check_priority, limits_of
from jobs.batches import queue_limits
from jobs.batches.submission import CreateBatch, check_file, check_request
from jobs.call_limits import parse_window
from jobs.chunks import leasing
from jobs.claims.statements import CLAIM_COLUMNS
from jobs.database import advisory_lock, locked_row
from jobs.errors import ConflictError, NotFoundError
from jobs.files import share_file
from jobs.ids import new_id
from jobs.lines.endpoints import LineKind, kind_of
from jobs.pagination import Page, read_page
from jobs.partitions import ensure_today
from jobs.settings import Settings
from jobs.states import (
    TERMINAL_BATCH_STATES,
    BatchState,
    EventType,
    IllegalMoveError,
    Priority,
    require_move,
    sources_of,
)
from jobs.tables import Batch, File, Tenant

log = logging.getLogger(__name__)

_RETRY_MINUTES = 10  # retries without a key come within seconds; ten minutes outlast a client's longest wait
_MOMENT: dict[BatchState, str] = {
    state: f"{state.value}_at" for state in BatchState if state is not BatchState.VALIDATING
}
_ENDS_WITH_A_STATE = (
    "hinted_at",
    "deferred_until",
    "reading_limit_seconds",
    "waits_for_tokens",
    "waits_for_picos",
    "held_by",
    CLAIM_COLUMNS.owner,
    CLAIM_COLUMNS.until,
)
_NEEDS_OUTCOME = BatchState.FINALIZING
# Built once, as waiting clients poll it every few seconds.
_OF_TENANT = select(Batch).where(
    Batch.id == bindparam("batch_id"), Batch.tenant_id == bindparam("tenant_id"), Batch.deleted_at.is_(None)
)
NEVER_COMPLETES = (BatchState.FAILED, BatchState.EXPIRED, BatchState.CANCELLING, BatchState.CANCELLED)


def create_batch(
    session: Session,
    tenant: Tenant,
    request: CreateBatch,
    settings: Settings,
    *,
    key_id: str | None = None,
    spend: Callable[[int], None] = lambda tokens: None,
    new_input: File | None = None,
) -> Batch:
    """Accept a batch and reserve its estimated tokens, or refuse it: no other limit fails it later.

    A repeated call returns the batch created before: with the same idempotency key, or without a key when the client
    marks it as a retry. `key_id` is the submitting key; `spend` is called with the tokens of a new batch, and may
    refuse them. `new_input` is the input if this transaction has created it, after `find_repeated` returned None.

    Raises InputError, ForbiddenError, TooLargeError, OverBudgetError, LimitError, RateLimitError, NotFoundError, or
    ConflictError where the key was used for another request.
    """
    if new_input is None and (earlier := find_repeated(session, tenant, request)) is not None:
        return earlier
    check_create(session, tenant, request, settings)
    file = new_input or _share_input(session, tenant.id, request.input_file_id)
    check_file(file, settings)
    spend(_estimated_tokens(file, request))
    return _insert(session, tenant, request, file=file, limits=limits_of(tenant, settings), key_id=key_id)


def check_create(session: Session, tenant: Tenant, request: CreateBatch, settings: Settings) -> None:
    """Raise the errors of `create_batch` that do not depend on the input."""
    if request.stage_of is None:
        check_priority(tenant, request.priority)
        queue_limits.check_queue(session, settings)
    if request.after is not None:
        _check_after(session, tenant.id, request.after)


def find_repeated(session: Session, tenant: Tenant, request: CreateBatch) -> Batch | None:
    """Return the batch that an equal create call made before, or None; locks out other equal calls.

    Raises InputError, or ConflictError where the key was used for another request.
    """
    check_request(request)
    fingerprint = request.fingerprint()
    _wait_for_twins(session, tenant.id, request, fingerprint=fingerprint)
    earlier = _find_earlier(session, tenant.id, request, fingerprint=fingerprint)
    if earlier is not None:
        log.info("create repeated batch_id=%s retry_count=%d", earlier.id, request.retry_count)
    return earlier


def get_batch(session: Session, tenant_id: str, batch_id: str) -> Batch:
    """Return a batch of this tenant. Raises NotFoundError, also for a deleted batch or another tenant's."""
    batch: Batch | None = session.scalar(_OF_TENANT, {"batch_id": batch_id, "tenant_id": tenant_id})
    if batch is None:
        raise not_found(batch_id)
    return batch


def not_found(batch_id: str) -> NotFoundError:
    """Return the error for a batch that does not exist, was deleted or is another tenant's."""
    return NotFoundError(f"No batch found with id {batch_id!r}.", param="batch_id")


def find_batches(session: Session, batch_ids: Collection[str]) -> Sequence[Batch]:
    """Return those of these batches that exist, of any tenant."""
    return session.scalars(select(Batch).where(Batch.id.in_(batch_ids), Batch.deleted_at.is_(None))).all()


def list_batches(
    session: Session,
    tenant_id: str,
    *,
    wanted: Sequence[ColumnElement[bool]] = (),
    after: str | None = None,
    limit: int = 20,
) -> Page[Batch]:
    """Return a page of a tenant's batches that meet all conditions, newest first.

    Raises InputError on an unknown `after`.
    """
    query = select(Batch).where(Batch.tenant_id == tenant_id, Batch.deleted_at.is_(None), *wanted)
    return read_page(session, query, table=Batch, tenant_id=tenant_id, after=after, limit=limit)


def cancel_batch(session: Session, tenant_id: str, batch_id: str) -> Batch:
    """Cancel a validating or running batch; finished lines stay and are billed.

    Idempotent. Raises ConflictError where the batch has ended or is writing its files.
    """
    get_batch(session, tenant_id, batch_id)
    batch = lock_batch(session, batch_id)
    assert batch is not None, "rows of batches stay, deleted or not"
    if batch.state == BatchState.CANCELLING:
        return batch
    if not is_cancellable(batch):
        raise ConflictError(f"Cannot cancel a batch with status '{batch.state}'.", code="batch_not_cancellable")
    move_batch(session, batch, BatchState.CANCELLING)
    leasing.withdraw_open(session, batch.id)
    return batch


def is_cancellable(batch: Batch) -> bool:
    """Return whether the batch can be cancelled now."""
    return batch.state in sources_of(BatchState.CANCELLING)


def lock_batch(session: Session, batch_id: str) -> Batch | None:
    """Return the batch, freshly read and locked until the transaction ends, or None."""
    return locked_row(session, Batch, batch_id)


def move_batch(
    session: Session, batch: Batch, after: BatchState, *, outcome: BatchState | None = None, **also: object
) -> None:
    """Move a batch to its next state and record the time; the only writer of `batch.state`.

    `also` are further columns that the move writes: one update of a row that many indexes name.

    The final move is an event for the tenant's webhooks, and any move of a held batch lets it go. A move to finalizing
    has an `outcome` (completed, expired or failed). Raises IllegalMoveError where the transition table does not allow
    the move, also when another transaction moved the batch meanwhile: call `lock_batch` first.
    """
    require_move(BatchState(batch.state), after)
    assert (outcome is not None) == (after is _NEEDS_OUTCOME), f"{after} with outcome {outcome}"
    if outcome is not None:
        require_move(after, outcome)
    session.flush()
    is_held = batch.held_by is not None
    move = _move(after, outcome, tuple(also))
    values = {f"new_{name}": value for name, value in also.items()}
    moved: Batch | None = session.scalar(move, {"batch_id": batch.id, "before": batch.state, **values})
    if moved is None:
        raise IllegalMoveError(f"batch {batch.id} left {batch.state} before it could move to {after}")
    if is_held:
        hooks.let_go(session, moved)
    if after in TERMINAL_BATCH_STATES:
        hooks.emit(session, batch.tenant_id, EventType(f"batch.{after}"), hooks.named(batch.id, batch.name))


@cache
def _move(after: BatchState, outcome: BatchState | None, also: Sequence[str]) -> ReturningUpdate[Batch]:
    """Return the statement of a move, which is built once for each."""
    values: dict[str, Any] = {"state": after.value, _MOMENT[after]: func.now()} | dict.fromkeys(_ENDS_WITH_A_STATE)
    values |= {name: bindparam(f"new_{name}") for name in also}
    if outcome is not None:
        values["outcome"] = outcome.value
    is_before = (Batch.id == bindparam("batch_id")) & (Batch.state == bindparam("before"))
    moved = update(Batch).where(is_before, Batch.state.in_(sources_of(after))).values(values).returning(Batch)
    # False: a failed move must not change the object either.
    return moved.execution_options(populate_existing=True, synchronize_session=False)


def _wait_for_twins(session: Session, tenant_id: str, request: CreateBatch, *, fingerprint: str) -> None:
    """Serialise equal creates: a retry must see what the first try, perhaps still running, commits.

    A run repeats none: it creates each batch once, under its claim.
    """
    if request.run_id is not None:
        return
    twins = f"key {request.idempotency_key}" if request.idempotency_key is not None else fingerprint
    advisory_lock(session, f"create {tenant_id} {twins}")


def _find_earlier(session: Session, tenant_id: str, request: CreateBatch, *, fingerprint: str) -> Batch | None:
    mine = select(Batch).where(Batch.tenant_id == tenant_id, Batch.deleted_at.is_(None))
    if request.idempotency_key is not None:
        batch = session.scalar(mine.where(Batch.idempotency_key == request.idempotency_key))
        if batch is not None and batch.fingerprint != fingerprint:
            raise ConflictError(
                f"The Idempotency-Key {request.idempotency_key!r} was used for another request, which made batch "
                f"{batch.id!r}. Repeat that request unchanged, or use a new key.",
                code="idempotency_key_reused",
            )
        return batch
    if request.retry_count == 0:
        return None
    recent = Batch.created_at > func.now() - text(f"interval '{_RETRY_MINUTES} minutes'")
    same = mine.where(Batch.fingerprint == fingerprint, Batch.idempotency_key.is_(None), recent)
    return session.scalar(same.order_by(Batch.created_at.desc(), Batch.id.desc()).limit(1))


def _check_after(session: Session, tenant_id: str, batch_id: str) -> None:
    """Raise NotFoundError where the predecessor does not exist, ConflictError where it will not complete."""
    try:
        earlier = get_batch(session, tenant_id, batch_id)
    except NotFoundError:
        raise NotFoundError(f"No batch found with id {batch_id[:100]!r} to start after.", param="after") from None
    if earlier.state in NEVER_COMPLETES or earlier.outcome in NEVER_COMPLETES:
        raise ConflictError(
            f"Batch {batch_id!r} is {earlier.state} and will not complete, so nothing can start after it. "
            "Retry it and give the id of the retry.",
            param="after",
            code="earlier_batch_failed",
        )


def trace_context(session: Session, batch_id: str) -> str | None:
    """Return the trace context of the request that created a batch; None where it is not traced."""
    return session.scalar(select(Batch.trace_context).where(Batch.id == batch_id))


def _share_input(session: Session, tenant_id: str, file_id: str) -> File:
    """Return the input file, locked against deletion until this transaction ends."""
    file = share_file(session, tenant_id, file_id)
    if file is None:
        raise NotFoundError(
            f"No such File object: {file_id!r}. It may have been deleted or have expired.", param="input_file_id"
        )
    return file


def _insert(
    session: Session, tenant: Tenant, request: CreateBatch, *, file: File, limits: Limits, key_id: str | None
) -> Batch:
    now = ensure_today(session)
    tokens = _estimated_tokens(file, request)
    is_covered = budgets.reserve(session, tenant.id, tokens, key_id=key_id, may_overflow=tenant.may_overflow)
    if request.stage_of is None:
        queue_limits.check_tenant(session, tenant.id, limits, tokens=tokens)  # under the lock of the budget
    batch = Batch(
        id=new_id("batch"),
        tenant_id=tenant.id,
        input_file_id=file.id,
        endpoint=request.endpoint,
        completion_window=request.completion_window,
        priority=(request.priority if is_covered else Priority.OVERFLOW).value,
        invalid_lines=request.invalid_lines.value,
        uncovered_lines=request.uncovered_lines.value,
        name=request.name,
        request_metadata=None if request.metadata is None else dict(request.metadata),
        output_expires_after_seconds=request.output_expires_after_seconds,
        idempotency_key=request.idempotency_key,
        fingerprint=request.fingerprint(),
        retry_of=request.retry_of,
        after_batch_id=request.after,
        reserved_tokens=tokens if is_covered else 0,
        created_at=now,
        expires_at=now + parse_window(request.completion_window),
        api_key_id=key_id,
        cap_tokens=request.cap_tokens,
        cap_picos=request.cap_picos,
        trace_context=request.trace_context,
        run_id=request.run_id,
        is_growing=request.is_growing,
        engine_choice=request.engine.value,
        is_reproducible=request.is_reproducible,
    )
    session.add(batch)
    session.flush()
    return batch


def _estimated_tokens(file: File, request: CreateBatch) -> int:
    if kind_of(request.endpoint) is LineKind.PREPARE:
        return 0
    return (file.estimated_input_tokens or 0) + (file.estimated_output_tokens or 0)
