"""Deletes extractions and the texts of deleted documents, and removes extractions that ended long ago."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import delete, text
from sqlalchemy.orm import Session, sessionmaker

from features.documents import stages
from features.documents.lifecycle import EXTRACTIONS
from features.documents.reviewing import reviews
from features.documents.tables import CollectionDocument, Extraction
from flows import rows
from flows.deletion import delete_batches, delete_files
from jobs import deletions
from jobs.database import transaction
from jobs.deletions import Deleted
from jobs.purges import Purge
from jobs.retention.purging import delete_objects
from jobs.settings import Settings
from jobs.storage import Storage

_ROWS = 500  # per transaction
_REVIEWS = 10_000  # per transaction


def delete_extraction(session: Session, tenant_id: str, extraction_id: str, *, by: str) -> None:
    """Delete an extraction that has ended: its files, its batches with their results, and its row.

    Billing entries stay. Raises NotFoundError, or ConflictError if it has not ended.
    """
    extraction = EXTRACTIONS.lock_to_delete(session, tenant_id, extraction_id)
    delete_batches(session, stages.stages_of(session, extraction_id), by=by)
    named = _named_files(extraction)
    _forget(session, [extraction_id])
    delete_files(session, named, by=by)
    deletions.record(session, Deleted.EXTRACTION, [(extraction_id, tenant_id)], by=by)


def _named_files(extraction: Extraction) -> list[str]:
    names = (f"{name}_file_id" for name in ("documents", "plan", "output", "parquet"))
    return [file_id for name in names if (file_id := getattr(extraction, name)) is not None]


def purges(maker: sessionmaker[Session], storage: Storage, settings: Settings) -> Sequence[Purge]:
    """Return the purges of documents and extractions, for `Feature.purges`."""
    age = timedelta(days=settings.run_days)
    return (
        Purge(what="documents", step=lambda: purge_documents(maker, storage)),
        Purge(what="old extractions", chore="forget extractions", step=lambda: purge_extractions(maker, age=age)),
    )


def purge_documents(maker: sessionmaker[Session], storage: Storage) -> int:
    """Delete the texts of deleted documents unless another document shares them; return how many documents are gone.

    Includes documents of deleted tenants. A tenant's texts stay while an extraction reads documents (their rows name
    texts only later) and while an index, which cuts the texts, is built. Objects that the store fails to delete are
    retried in the next run.
    """
    with transaction(maker) as session:
        session.execute(_DELETE_OF_DELETED_TENANTS)
    num_gone = 0
    while True:
        with transaction(maker) as session:
            rows = session.execute(_DELETED, {"limit": _ROWS}).all()
        unneeded = {row.object_key: row.object_key for row in rows if row.is_unneeded}
        gone = delete_objects(storage, unneeded)
        done = [row.id for row in rows if not row.is_unneeded or row.object_key in gone]
        with transaction(maker) as session:
            session.execute(delete(CollectionDocument).where(CollectionDocument.id.in_(done)))
        num_gone += len(done)
        if len(done) < len(rows) or not rows:
            return num_gone


def purge_extractions(maker: sessionmaker[Session], *, age: timedelta) -> int:
    """Remove extractions that ended longer than `age` ago, and those of deleted tenants; return how many.

    Their files expire by themselves or stay; their batches are kept like all batches. Reviews are deleted first, in
    portions: one extraction may have a million. Nobody changes reviews of extractions this old.
    """
    num_purged = 0
    while True:
        with transaction(maker) as session:
            extraction_ids = session.scalars(_OLD, {"age": age, "limit": _ROWS}).all()
            if not extraction_ids:
                return num_purged
            num_reviews = reviews.forget_some(session, extraction_ids, limit=_REVIEWS)
            if num_reviews < _REVIEWS:
                _forget(session, extraction_ids)
                num_purged += len(extraction_ids)


def _forget(session: Session, extraction_ids: Sequence[str]) -> None:
    reviews.forget(session, extraction_ids)
    rows.forget(session, extraction_ids)


_DELETE_OF_DELETED_TENANTS = text("""
    UPDATE collection_document SET deleted_at = now()
    WHERE deleted_at IS NULL AND tenant_id IN (SELECT id FROM tenant WHERE deleted_at IS NOT NULL)
""")

_DELETED = text("""
    SELECT id, object_key, object_key IS NOT NULL AND NOT EXISTS (
        SELECT FROM collection_document AS other
        WHERE other.object_key = collection_document.object_key AND other.deleted_at IS NULL
    ) AS is_unneeded
    FROM collection_document WHERE deleted_at IS NOT NULL AND NOT EXISTS (
        SELECT FROM flow JOIN extraction ON extraction.id = flow.id
        JOIN collection_document AS unread ON unread.collection_id = extraction.collection_id
        WHERE flow.recipe = 'extraction' AND flow.ended_at IS NULL AND flow.tenant_id = collection_document.tenant_id
            AND unread.object_key IS NULL AND unread.error IS NULL AND unread.deleted_at IS NULL
    ) AND NOT EXISTS (
        SELECT FROM flow
        WHERE flow.recipe = 'index' AND flow.ended_at IS NULL AND flow.tenant_id = collection_document.tenant_id
    ) ORDER BY deleted_at LIMIT :limit
""")

_OLD = text("""
    SELECT flow.id FROM flow JOIN tenant ON tenant.id = flow.tenant_id
    WHERE recipe = 'extraction' AND ended_at IS NOT NULL
        AND (ended_at < now() - CAST(:age AS interval) OR tenant.deleted_at IS NOT NULL)
    ORDER BY ended_at, flow.id LIMIT :limit FOR UPDATE OF flow SKIP LOCKED
""")
