"""`/v1/collections`: bodies of collections and their documents."""

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
    """From 0; null if it concerns the whole document."""


class DocumentObject(ListedObject):
    object: Literal["collection.document"] = "collection.document"
    collection_id: str
    name: str
    file_id: str | None
    store: str | None
    """For a document that is an object of a registered store, like `key`."""
    key: str | None
    bytes: int
    sha256: str | None
    """Null until an extraction has read the document, like the next two."""
    num_pages: int | None
    num_characters: int | None
    error: DocumentProblem | None
    """Why the last extraction could not read the document."""
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
    """In the order of addition."""


class AddedDocuments(WireModel):
    object: Literal["list"] = "list"
    data: list[DocumentObject]
    """All documents of the call, including those already in the collection."""

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
    """Length of the whole text."""
    text: str
