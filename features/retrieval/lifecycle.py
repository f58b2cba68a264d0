"""Lifecycle of an index: find, list, lock, delete; the only writer of its state."""

from __future__ import annotations

from typing import Any

from sqlalchemy import bindparam, func, select, true
from sqlalchemy.orm import Session

from features.retrieval.states import TERMINAL_INDEX_STATES, IndexState
from features.retrieval.tables import PassageIndex
from flows.kinds import Kind
from jobs import deletions
from jobs.deletions import Deleted
from jobs.pagination import Page

INDEXES = Kind(PassageIndex, "index", ends=TERMINAL_INDEX_STATES, is_shown=lambda: PassageIndex.deleted_at.is_(None))


def list_indexes(
    session: Session, tenant_id: str, *, collection_id: str | None, after: str | None, limit: int
) -> Page[PassageIndex]:
    """Return a page of a tenant's indexes, newest first. Raises InputError on an unknown `after`."""
    of_it = true() if collection_id is None else PassageIndex.collection_id == collection_id
    return INDEXES.page(session, tenant_id, of_it, after=after, limit=limit)


def delete_index(session: Session, tenant_id: str, index_id: str, *, by: str) -> None:
    """Delete an index, built or not: it is invisible from now on. Raises NotFoundError.

    A batch that it waits for is cancelled, and `features.retrieval.purging` deletes its data. Billing entries stay.
    """
    index = INDEXES.lock_own(session, tenant_id, index_id)
    if index.deleted_at is not None:
        raise INDEXES.not_found(index_id)
    if index.state == IndexState.IN_PROGRESS:
        INDEXES.move(session, index, IndexState.CANCELLING)
    index.deleted_at = session.scalar(select(func.now()))
    index.idempotency_key = index.request_metadata = index.name = None
    session.flush()
    deletions.record(session, Deleted.INDEX, [(index_id, tenant_id)], by=by)


def counts_of(index: PassageIndex) -> dict[str, Any]:
    """Return the numbers of an index's documents by outcome, once they are read."""
    num_failed = sum(index.failed_codes.values())
    return {"total": index.num_documents, "completed": index.num_indexed, "failed": num_failed}


def stored_bytes(session: Session, tenant_id: str) -> int:
    """Return the bytes of a tenant's indexes."""
    return int(session.scalar(_STORED_BYTES, {"tenant_id": tenant_id}) or 0)


_STORED_BYTES = (
    select(func.sum(PassageIndex.size_bytes))
    .select_from(PassageIndex)
    .where(PassageIndex.tenant_id == bindparam("tenant_id"), PassageIndex.deleted_at.is_(None))
)
