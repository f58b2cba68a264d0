"""Documents of a collection: files of the tenant and objects of its stores, each at most once."""

from __future__ import annotations

from collections.abc import Collection as Ids
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sqlalchemy import func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from features.documents.settings import DocumentSettings
from features.documents.tables import Collection, CollectionDocument
from features.pipelines.external.store import ExternalStore
from jobs import deletions, files
from jobs.deletions import Deleted
from jobs.errors import InputError, NotFoundError, TooLargeError
from jobs.files import Purpose
from jobs.ids import new_id

MAX_LISTED = 10_000
"""Maximum number of store objects that one call adds."""
_ROWS_A_STATEMENT = 1000
_COPIED = ("name", "size_bytes", "file_id", "store", "key", "version")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Location of a document's bytes: a file, or an object of a store."""

    name: str
    size_bytes: int
    file_id: str | None = None
    store: str | None = None
    key: str | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPage:
    """A page of a collection's documents, in the order of addition."""

    data: Sequence[CollectionDocument]
    has_more: bool


def file_sources(session: Session, tenant_id: str, names: Mapping[str, str | None]) -> list[Source]:
    """Return files as sources; `names` by file id, None for a file's own name.

    Raises NotFoundError, or InputError for a file with another purpose.
    """
    return [_file_source(session, tenant_id, file_id, name) for file_id, name in names.items()]


def _file_source(session: Session, tenant_id: str, file_id: str, name: str | None) -> Source:
    file = files.find_kept(session, tenant_id, file_id)
    if file is None:
        raise NotFoundError(
            f"No such File object: {file_id[:100]!r}. It may have been deleted or have expired.", param="file_ids"
        )
    if file.purpose != Purpose.USER_DATA:
        raise InputError(
            f"File {file.id!r} has purpose {file.purpose!r}; upload documents with purpose 'user_data'.",
            param="file_ids",
            code="invalid_file_purpose",
        )
    return Source(name=name or file.filename, size_bytes=file.size_bytes, file_id=file.id)


def store_sources(store: ExternalStore, name: str, prefix: str) -> list[Source]:
    """List the objects of a store below a prefix. Raises InputError if there are none, TooLargeError for too many.

    May take as long as the store does: call it outside transactions.
    """
    objects = list(islice(store.list(prefix), MAX_LISTED + 1))
    if not objects:
        raise InputError(
            f"The store {name!r} has nothing below {prefix[:200]!r}; give a folder with / at its end, or a key.",
            param="prefix",
            code="store_missing",
        )
    if len(objects) > MAX_LISTED:
        raise TooLargeError(
            f"The store {name!r} has more than {MAX_LISTED:,} objects below {prefix[:200]!r}, the most that a call "
            "adds. Give a longer prefix, and call several times.",
            param="prefix",
            code="too_many_documents",
        )
    return [
        Source(name=each.key, size_bytes=each.size_bytes, store=name, key=each.key, version=each.version)
        for each in objects
    ]


def add_documents(
    session: Session, collection: Collection, sources: Sequence[Source], *, settings: DocumentSettings
) -> list[CollectionDocument]:
    """Add documents to a locked collection, each once; return all of them, including those already there.

    The version of an object that has changed since the last listing is updated. Raises TooLargeError.
    """
    _check_sizes(sources, settings)
    blocks = [sources[at : at + _ROWS_A_STATEMENT] for at in range(0, len(sources), _ROWS_A_STATEMENT)]
    rows = [row for block in blocks for row in _added(session, collection, block)]
    count = num_documents(session, [collection.id])[collection.id]
    if count > settings.collection_documents:
        raise TooLargeError(
            f"The collection would have {count:,} documents, and {settings.collection_documents:,} are allowed. "
            "Create another collection for the rest.",
            param="collection_id",
            code="too_many_documents",
        )
    return rows


def _check_sizes(sources: Sequence[Source], settings: DocumentSettings) -> None:
    for source in sources:
        if source.size_bytes > settings.max_document_bytes:
            raise TooLargeError(
                f"{source.name[:200]!r} has {source.size_bytes:,} bytes and a document may have "
                f"{settings.max_document_bytes:,}. Split it, or leave it out.",
                param="file_ids" if source.file_id else "prefix",
                code="document_too_large",
            )


def _added(session: Session, collection: Collection, sources: Sequence[Source]) -> list[CollectionDocument]:
    """Insert documents of one kind, each once, or update those already there."""
    is_file = sources[0].file_id is not None
    statement = insert(CollectionDocument).values(
        [
            {
                "id": new_id("document"),
                "collection_id": collection.id,
                "tenant_id": collection.tenant_id,
                **{name: getattr(source, name) for name in _COPIED},
            }
            for source in sources
        ]
    )
    changed = {"size_bytes": statement.excluded.size_bytes, "version": statement.excluded.version}
    written = statement.on_conflict_do_update(
        index_elements=["collection_id", "file_id"] if is_file else ["collection_id", "store", "key"],
        index_where=text(f"deleted_at IS NULL AND file_id IS {'NOT ' if is_file else ''}NULL"),
        set_=changed,
    )
    rows = session.scalars(written.returning(CollectionDocument), execution_options={"populate_existing": True})
    return list(rows)


def num_documents(session: Session, collection_ids: Sequence[str]) -> dict[str, int]:
    """Return the number of documents of each of these collections."""
    kept = CollectionDocument.collection_id.in_(collection_ids) & CollectionDocument.deleted_at.is_(None)
    counted = select(CollectionDocument.collection_id, func.count()).where(kept)
    counts = {row[0]: int(row[1]) for row in session.execute(counted.group_by(CollectionDocument.collection_id))}
    return {collection_id: counts.get(collection_id, 0) for collection_id in collection_ids}


def get_document(session: Session, collection_id: str, document_id: str) -> CollectionDocument:
    """Return a document of a collection. Raises NotFoundError."""
    is_it = (CollectionDocument.id == document_id) & (CollectionDocument.collection_id == collection_id)
    document = session.scalar(select(CollectionDocument).where(is_it, CollectionDocument.deleted_at.is_(None)))
    if document is None:
        raise NotFoundError(f"No document found with id {document_id[:100]!r} in this collection.", param="document_id")
    return document


def list_documents(session: Session, collection_id: str, *, after: str | None, limit: int) -> DocumentPage:
    """Return a page of a collection's documents. Raises InputError if `after` is not one of them."""
    mine = CollectionDocument.collection_id == collection_id
    query = select(CollectionDocument).where(mine, CollectionDocument.deleted_at.is_(None))
    if after is not None:
        # The cursor still works if its document is deleted meanwhile.
        number = session.scalar(select(CollectionDocument.number).where(mine, CollectionDocument.id == after))
        if number is None:
            raise InputError(
                f"after is {after[:100]!r}, which is no document of this collection; give the id of the last one of a "
                "page",
                param="after",
                code="invalid_value",
            )
        query = query.where(CollectionDocument.number > number)
    rows = session.scalars(query.order_by(CollectionDocument.number).limit(limit + 1)).all()
    return DocumentPage(data=rows[:limit], has_more=len(rows) > limit)


def object_keys(session: Session, tenant_id: str, document_ids: Ids[str]) -> dict[str, str]:
    """Return the object keys of the texts of a tenant's documents, by id; only documents that exist and were read."""
    is_kept = CollectionDocument.id.in_(document_ids) & CollectionDocument.deleted_at.is_(None)
    query = select(CollectionDocument.id, CollectionDocument.object_key).where(
        is_kept, CollectionDocument.tenant_id == tenant_id
    )
    return {document_id: key for document_id, key in session.execute(query) if key is not None}


def iter_documents(session: Session, collection_id: str, *, after: int, limit: int) -> Sequence[CollectionDocument]:
    """Return the next documents of a collection, after number `after`."""
    mine = (CollectionDocument.collection_id == collection_id) & CollectionDocument.deleted_at.is_(None)
    query = select(CollectionDocument).where(mine, CollectionDocument.number > after)
    return session.scalars(query.order_by(CollectionDocument.number).limit(limit)).all()


def delete_document(session: Session, collection: Collection, document_id: str, *, by: str) -> None:
    """Delete a document of a locked collection; its text is purged later. Raises NotFoundError."""
    document = get_document(session, collection.id, document_id)
    document.deleted_at = session.scalar(select(func.now()))
    session.flush()
    deletions.record(session, Deleted.DOCUMENT, [(document.id, collection.tenant_id)], by=by)


def delete_all(session: Session, collection_id: str) -> None:
    """Delete all documents of a deleted collection."""
    mine = (CollectionDocument.collection_id == collection_id) & CollectionDocument.deleted_at.is_(None)
    session.execute(update(CollectionDocument).where(mine).values(deleted_at=func.now()))


def note_read(session: Session, results: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Store the results of reading documents, as values of the same columns by document id."""
    session.execute(update(CollectionDocument), [{"id": document_id, **values} for document_id, values in results])
