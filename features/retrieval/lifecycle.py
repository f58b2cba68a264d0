"""Lifecycle of an index: find, list, lock, delete; the only writer of its state."""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from features.retrieval.states import TERMINAL_INDEX_STATES, IndexState
from features.retrieval.tables import PassageIndex
from flows.rows import enter, lock
from jobs import deletions
from jobs.deletions import Deleted
from jobs.errors import NotFoundError
from jobs.pagination import Page, read_page

log = logging.getLogger(__name__)


def find_index(session: Session, tenant_id: str, index_id: str) -> PassageIndex:
    """Return an index of this tenant. Raises NotFoundError, also if it is deleted or another tenant's."""
    is_mine = (PassageIndex.id == index_id) & (PassageIndex.tenant_id == tenant_id)
    index = session.scalar(select(PassageIndex).where(is_mine, PassageIndex.deleted_at.is_(None)))
    if index is None:
        raise not_found(index_id)
    return index


def list_indexes(
    session: Session, tenant_id: str, *, collection_id: str | None, after: str | None, limit: int
) -> Page[PassageIndex]:
    """Return a page of a tenant's indexes, newest first. Raises InputError on an unknown `after`."""
    query = select(PassageIndex).where(PassageIndex.tenant_id == tenant_id, PassageIndex.deleted_at.is_(None))
    if collection_id is not None:
        query = query.where(PassageIndex.collection_id == collection_id)
    return read_page(session, query, table=PassageIndex, tenant_id=tenant_id, after=after, limit=limit)


def lock_index(session: Session, index_id: str) -> PassageIndex | None:
    """Return the index, fresh and locked until the transaction ends, or None."""
    return lock(session, PassageIndex, index_id)


def delete_index(session: Session, tenant_id: str, index_id: str, *, by: str) -> None:
    """Delete an index, built or not: it is invisible from now on. Raises NotFoundError.

    A batch that it waits for is cancelled, and `features.retrieval.purging` deletes its data. Billing entries stay.
    """
    find_index(session, tenant_id, index_id)
    index = lock_index(session, index_id)
    if index is None or index.deleted_at is not None:
        raise not_found(index_id)
    if index.state == IndexState.IN_PROGRESS:
        move(session, index, IndexState.CANCELLING)
    index.deleted_at = session.scalar(select(func.now()))
    index.idempotency_key = index.request_metadata = index.name = None
    session.flush()
    deletions.record(session, Deleted.INDEX, [(index_id, tenant_id)], by=by)


def move(session: Session, index: PassageIndex, after: IndexState) -> None:
    """Move a locked index to its next state; the only writer of `state`. Raises IllegalMoveError."""
    before = index.state
    enter(session, index, after, is_end=after in TERMINAL_INDEX_STATES)
    log.info("index moved index_id=%s state=%s after=%s", index.id, before, after)
    session.flush()


def not_found(index_id: str) -> NotFoundError:
    return NotFoundError(f"No index found with id {index_id[:100]!r}.", param="index_id")


def counts_of(index: PassageIndex) -> dict[str, Any]:
    """Return the numbers of an index's documents by outcome, once they are read."""
    num_failed = sum(index.failed_codes.values())
    return {"total": index.num_documents, "completed": index.num_indexed, "failed": num_failed}


def stored_bytes(session: Session, tenant_id: str) -> int:
    """Return the bytes of a tenant's indexes."""
    is_kept = (PassageIndex.tenant_id == tenant_id) & PassageIndex.deleted_at.is_(None)
    return int(session.scalar(select(func.sum(PassageIndex.size_bytes)).select_from(PassageIndex).where(is_kept)) or 0)
