"""`/v1/collections`: collections of documents, and the documents in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from api.schemas.wire import DeletedObject, ListedObject, Page, WireModel, unix_seconds
from features.documents.tables import Collection, CollectionDocument


class CollectionObject(ListedObject):
    object: Literal["collection"] = "collection"
    name: str
    num_documents: int
    metadata: dict[str, str] | None
    created_at: int

    @classmethod
    def of(cls, collection: Collection, *, num_documents: int) -> Self:
        return cls(
            id=collection.id,
            name=collection.name,
            num_documents=num_documents,
            metadata=collection.request_metadata,
            created_at=unix_seconds(collection.created_at),
        )


class CollectionPage(Page[CollectionObject]):
    """Newest first."""


class DeletedCollection(DeletedObject):
    object: Literal["collection"] = "collection"


class DocumentProblem(WireModel):
    code: str
    message: str
    page: int | None
    """From 0; null for what concerns the whole document."""


class DocumentObject(ListedObject):
    object: Literal["collection.document"] = "collection.document"
    collection_id: str
    name: str
    file_id: str | None
    store: str | None
    """Of a document that is an object of a registered store, as `key`."""
    key: str | None
    bytes: int
    sha256: str | None
    """Null, as all that follows, until an extraction has read it."""
    num_pages: int | None
    num_characters: int | None
    error: DocumentProblem | None
    """Why the last extraction could not read it."""
    created_at: int

    @classmethod
    def of(cls, document: CollectionDocument) -> Self:
        return cls(
            id=document.id,
            collection_id=document.collection_id,
            name=document.name,
            file_id=document.file_id,
            store=document.store,
            key=document.key,
            bytes=document.size_bytes,
            sha256=document.sha256,
            num_pages=document.num_pages,
            num_characters=document.num_characters,
            error=None if document.error is None else DocumentProblem(**document.error),
            created_at=unix_seconds(document.created_at),
        )


class DocumentPage(Page[DocumentObject]):
    """In the order in which they were added."""


class AddedDocuments(WireModel):
    object: Literal["list"] = "list"
    data: list[DocumentObject]
    """All that were named, also those that were there."""

    @classmethod
    def all_of(cls, documents: Sequence[CollectionDocument]) -> Self:
        return cls(data=[DocumentObject.of(document) for document in documents])


class DeletedDocument(DeletedObject):
    object: Literal["collection.document"] = "collection.document"


class DocumentText(WireModel):
    object: Literal["document.text"] = "document.text"
    document_id: str
    document: str
    """Its name."""
    start: int
    end: int
    num_characters: int
    """Of all of its text."""
    text: str
