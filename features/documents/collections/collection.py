"""Collections of a tenant: create, get, list and delete."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from features.documents.collections import documents
from features.documents.settings import DocumentSettings
from features.documents.states import TERMINAL_EXTRACTION_STATES
from features.documents.tables import Collection, Extraction
from features.retrieval.states import TERMINAL_INDEX_STATES
from features.retrieval.tables import PassageIndex
from jobs import deletions
from jobs.batches.submission import check_metadata
from jobs.database import advisory_lock
from jobs.deletions import Deleted
from jobs.errors import ConflictError, InputError, LimitError, NotFoundError
from jobs.ids import new_id
from jobs.pagination import Page, read_page


def create_collection(
    session: Session, tenant_id: str, name: str, *, metadata: Mapping[str, str] | None, settings: DocumentSettings
) -> Collection:
    """Create an empty collection. Raises InputError for invalid metadata, LimitError at the tenant's limit.

    Names are for display and need not be unique.
    """
    check_metadata(metadata)
    advisory_lock(session, f"collections {tenant_id}")
    mine = select(func.count()).where(Collection.tenant_id == tenant_id, Collection.deleted_at.is_(None))
    if (session.scalar(mine) or 0) >= settings.tenant_collections:
        raise LimitError(
            f"You have {settings.tenant_collections:,} collections, which is the maximum. Delete one.",
            code="too_many_collections",
        )
    collection = Collection(
        id=new_id("collection"),
        tenant_id=tenant_id,
        name=name,
        request_metadata=None if metadata is None else dict(metadata),
    )
    session.add(collection)
    session.flush()
    session.refresh(collection)
    return collection


def get_collection(session: Session, tenant_id: str, collection_id: str) -> Collection:
    """Return a collection of this tenant. Raises NotFoundError, also if it is deleted or another tenant's."""
    is_mine = (Collection.id == collection_id) & (Collection.tenant_id == tenant_id)
    collection = session.scalar(select(Collection).where(is_mine, Collection.deleted_at.is_(None)))
    if collection is None:
        raise NotFoundError(f"No collection found with id {collection_id[:100]!r}.", param="collection_id")
    return collection


def lock_collection(session: Session, tenant_id: str, collection_id: str) -> Collection:
    """Return a collection, locked until the transaction ends: one transaction at a time changes its documents."""
    get_collection(session, tenant_id, collection_id)
    query = select(Collection).where(Collection.id == collection_id).with_for_update(key_share=True)
    collection = session.scalar(query, execution_options={"populate_existing": True})
    if collection is None or collection.deleted_at is not None:
        raise NotFoundError(f"No collection found with id {collection_id[:100]!r}.", param="collection_id")
    return collection


def lock_filled(session: Session, tenant_id: str, collection_id: str) -> tuple[Collection, int]:
    """Return a locked collection and the number of its documents. Raises InputError if it is empty."""
    collection = lock_collection(session, tenant_id, collection_id)
    num_documents = documents.num_documents(session, [collection.id])[collection.id]
    if not num_documents:
        raise InputError(
            f"Collection {collection.id!r} has no documents; add some first.",
            param="collection_id",
            code="empty_collection",
        )
    return collection, num_documents


def list_collections(session: Session, tenant_id: str, *, after: str | None, limit: int) -> Page[Collection]:
    """Return a page of a tenant's collections, newest first. Raises InputError on an unknown `after`."""
    query = select(Collection).where(Collection.tenant_id == tenant_id, Collection.deleted_at.is_(None))
    return read_page(session, query, table=Collection, tenant_id=tenant_id, after=after, limit=limit)


def delete_collection(session: Session, tenant_id: str, collection_id: str, *, by: str) -> None:
    """Delete a collection, its documents and their texts; files and stores keep their content.

    Raises NotFoundError, or ConflictError while an extraction or an index of it is in progress.
    """
    collection = lock_collection(session, tenant_id, collection_id)
    has_ended = Extraction.state.in_([state.value for state in TERMINAL_EXTRACTION_STATES])
    open_one = select(Extraction.id).where(Extraction.collection_id == collection_id, ~has_ended).limit(1)
    extraction_id = session.scalar(open_one)
    if extraction_id is not None:
        raise ConflictError(
            f"Extraction {extraction_id!r} of this collection is under way; cancel it or wait for its end, then delete "
            "the collection.",
            code="collection_in_use",
        )
    _require_no_open_index(session, collection_id)
    documents.delete_all(session, collection_id)
    collection.deleted_at = session.scalar(select(func.now()))
    collection.request_metadata = None
    collection.name = collection.id
    deletions.record(session, Deleted.COLLECTION, [(collection_id, tenant_id)], by=by)


def _require_no_open_index(session: Session, collection_id: str) -> None:
    is_open = PassageIndex.state.not_in([state.value for state in TERMINAL_INDEX_STATES])
    index_id = session.scalar(
        select(PassageIndex.id).where(PassageIndex.collection_id == collection_id, is_open).limit(1)
    )
    if index_id is not None:
        raise ConflictError(
            f"Index {index_id!r} of this collection is being built; delete it or wait for its end, then delete the "
            "collection.",
            code="collection_in_use",
        )
