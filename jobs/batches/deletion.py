"""Delete batches and tenants: their contents go, billing records stay.

The rows of batches and tenants stay for the ledger, emptied of user data. Objects are only marked here;
`jobs.retention` purges them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from sqlalchemy import Select, case, func, null, select, update
from sqlalchemy.orm import Session, sessionmaker

from jobs import deletions, files, hooks
from jobs.accounts.keys import revoke_keys
from jobs.batches import lifecycle
from jobs.database import transaction
from jobs.deletions import Deleted
from jobs.errors import ConflictError, NotFoundError
from jobs.states import TERMINAL_BATCH_STATES, BatchState, sources_of
from jobs.tables import Batch, File, Tenant

_BLOCK = 100  # batches and files deleted or cancelled by one transaction
_ENDED = [state.value for state in TERMINAL_BATCH_STATES]


def delete_batch(session: Session, tenant_id: str, batch_id: str, *, by: str) -> list[str]:
    """Delete a batch that has ended, with its results and its output and error files; return the keys of their objects.

    The objects may be deleted after the commit. The user's input file stays, as other batches may read it; what
    features have made for this batch alone is deleted. Raises NotFoundError, or ConflictError where the batch, or what
    works for it, has not ended.
    """
    batch = lifecycle.get_batch(session, tenant_id, batch_id)
    session.refresh(batch)
    # Before its files are locked: a finalizing batch has none yet, but may have them by the time it is locked.
    if BatchState(batch.state) not in TERMINAL_BATCH_STATES:
        raise ConflictError(
            f"Cannot delete a batch with status '{batch.state}'. Cancel it or wait for its end, then delete it.",
            code="batch_not_deletable",
        )
    parts = hooks.parts_of(session, batch_id)
    keys = [key for part_id in parts.batch_ids for key in delete_batch(session, tenant_id, part_id, by=by)]
    outputs = _lock_outputs(session, batch_id, parts.file_ids)
    locked = lifecycle.lock_batch(session, batch_id)
    if locked is None or locked.deleted_at is not None:
        raise lifecycle.not_found(batch_id)
    files.mark_deleted(session, outputs, by=by)
    files.delete_results(session, Batch.id == batch_id, by=by)
    emptied = {
        "name": None,
        "request_metadata": null(),
        "errors": null(),
        "idempotency_key": None,
        "deleted_at": func.now(),
    }
    session.execute(update(Batch).where(Batch.id == batch_id).values(emptied))
    deletions.record(session, Deleted.BATCH, [(batch_id, tenant_id)], by=by)
    return keys + [key for file in outputs for key in files.keys_of(file.object_key, file.purpose)]


def _lock_outputs(session: Session, batch_id: str, others: Sequence[str]) -> list[File]:
    """Lock a batch's output files, a filled input and `others` before the batch itself, in the order of whoever deletes
    one of them."""
    filled_input = case((Batch.source_file_id.is_not(None), Batch.input_file_id))
    columns = Batch.output_file_id, Batch.error_file_id, filled_input
    file_ids = [*session.execute(select(*columns).where(Batch.id == batch_id)).one(), *others]
    is_kept = File.id.in_([file_id for file_id in file_ids if file_id is not None]) & File.deleted_at.is_(None)
    query = select(File).where(is_kept).order_by(File.id).with_for_update()
    return list(session.scalars(query, execution_options={"populate_existing": True}))


def delete_tenant(session: Session, tenant: Tenant, *, by: str) -> None:
    """Close a tenant permanently: delete keys and webhooks and free its name; `delete_left` does the rest."""
    tenant.deleted_at = session.scalar(select(func.now()))
    tenant.name = tenant.id
    revoke_keys(session, tenant.id)
    hooks.end_tenant(session, tenant.id)
    session.flush()
    deletions.record(session, Deleted.TENANT, [(tenant.id, tenant.id)], by=by)


def cancel_open(session: Session, tenant_id: str) -> int:
    """Cancel up to a hundred batches of a tenant that may still run lines; return how many, 0 once none is left.

    Commit after each hundred: the locks keep the tenant's workers waiting.
    """
    is_mine = (Batch.tenant_id == tenant_id) & Batch.deleted_at.is_(None)
    return _cancel(session, select(Batch).where(is_mine).order_by(Batch.id).limit(_BLOCK))


def _cancel(session: Session, batches: Select[Batch]) -> int:
    running = session.scalars(batches.where(Batch.state.in_(sources_of(BatchState.CANCELLING)))).all()
    for batch in running:
        with suppress(ConflictError):  # it has ended meanwhile
            lifecycle.cancel_batch(session, batch.tenant_id, batch.id)
    return len(running)


def delete_left(maker: sessionmaker[Session]) -> int:
    """Delete the remaining data of deleted tenants and cancel their running batches; return the number of items.

    A running batch is deleted by a later call, once it has ended; an input, once its last batch has ended.
    """
    total = 0
    while True:
        with transaction(maker) as session:
            num_deleted = _delete_some(session)
        if not num_deleted:
            return total
        total += num_deleted


def _delete_some(session: Session) -> int:
    deleted_tenants = select(Tenant.id).where(Tenant.deleted_at.is_not(None))
    theirs = (
        select(Batch)
        .where(Batch.tenant_id.in_(deleted_tenants), Batch.deleted_at.is_(None))
        .order_by(Batch.id)
        .limit(_BLOCK)
    )
    num_cancelled = _cancel(session, theirs)
    ended = session.scalars(theirs.where(Batch.state.in_(_ENDED))).all()
    for batch in ended:
        with suppress(NotFoundError, ConflictError):  # deleted with another one, or what works for it has not ended
            delete_batch(session, batch.tenant_id, batch.id, by=deletions.OPERATOR)
    return (
        num_cancelled + len(ended) + files.delete_all_of(session, deleted_tenants, by=deletions.OPERATOR, limit=_BLOCK)
    )
