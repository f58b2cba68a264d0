"""`/v1/collections/{id}/documents`: add, get, list and delete the documents of a collection."""

from __future__ import annotations

from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field

from api.auth import KeyIdDep, TenantDep
from api.fields import ObjectId, Storable, StrictModel
from api.openapi import failures
from api.services import Services, ServicesDep
from api.sessions import SessionDep
from api.spending import ONE_LISTING
from features.documents.collections import collection, documents
from features.documents.collections.documents import Source
from features.documents.schemas.collections import AddedDocuments, DeletedDocument, DocumentObject, DocumentPage
from features.documents.settings import DocumentSettings
from features.pipelines import stores
from jobs.database import transaction
from jobs.errors import InputError

router = APIRouter(
    prefix="/v1/collections/{collection_id}/documents",
    tags=["extractions"],
    responses=failures(401, 403, 404, 429, 503),
)

_MAX_FILES = 1000  # per call
_MAX_NAME = 4096  # the longest path of Linux


class ListQuery(StrictModel):
    after: ObjectId | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class NamedFile(StrictModel):
    file_id: ObjectId
    """A file of purpose `user_data`."""
    name: Annotated[Storable, Field(min_length=1, max_length=_MAX_NAME)]
    """The document's name in records; without one it is the file's."""


class DocumentsBody(StrictModel):
    """Files, or the objects of a registered store below a prefix."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": ["file_ids"]}, {"required": ["files"]}, {"required": ["store", "prefix"]}]
        }
    )

    file_ids: Annotated[list[ObjectId], Field(min_length=1, max_length=_MAX_FILES)] | None = None
    """Files of purpose `user_data`."""
    files: Annotated[list[NamedFile], Field(min_length=1, max_length=_MAX_FILES)] | None = None
    """The same with names of their own, instead of `file_ids`."""
    store: ObjectId | None = None
    """Name of a store that the operator has registered; used with `prefix`, instead of `file_ids`."""
    prefix: Annotated[Storable, Field(max_length=1000)] | None = None
    """A folder that ends with `/`, or a key; empty: everything in the store."""


@router.post("", operation_id="addDocuments", responses=failures(408, 413), dependencies=[ONE_LISTING])
async def add(collection_id: str, body: DocumentsBody, *, tenant: TenantDep, services: ServicesDep) -> AddedDocuments:
    """Add documents, each once: an existing one is not added again; its entry from a store is refreshed."""
    _check_source(body)
    async with services.preview_turn(tenant.id):
        return await run_sync(_add, services, tenant.id, collection_id, body, limiter=services.store.preview_threads)


@router.get("", operation_id="listDocuments")
def list_page(
    collection_id: str, session: SessionDep, *, tenant: TenantDep, query: Annotated[ListQuery, Query()]
) -> DocumentPage:
    parent = collection.get_collection(session, tenant.id, collection_id)
    page = documents.list_documents(session, parent.id, after=query.after, limit=query.limit)
    return DocumentPage.of([DocumentObject.of(each) for each in page.data], has_more=page.has_more)


@router.get("/{document_id}", operation_id="retrieveDocument")
def retrieve(collection_id: str, document_id: str, session: SessionDep, *, tenant: TenantDep) -> DocumentObject:
    parent = collection.get_collection(session, tenant.id, collection_id)
    return DocumentObject.of(documents.get_document(session, parent.id, document_id))


@router.delete("/{document_id}", operation_id="deleteDocument")
def delete(
    collection_id: str, document_id: str, session: SessionDep, *, tenant: TenantDep, key_id: KeyIdDep
) -> DeletedDocument:
    """Delete a document and its text; its file, or its object in a store, stays.

    An extraction that is in progress reports an error for it.
    """
    locked = collection.lock_collection(session, tenant.id, collection_id)
    documents.delete_document(session, locked, document_id, by=key_id)
    return DeletedDocument(id=document_id)


def _check_source(body: DocumentsBody) -> None:
    """Raise InputError unless exactly one source is given."""
    is_store = body.store is not None or body.prefix is not None
    given = [body.file_ids is not None, body.files is not None, is_store].count(True)
    if given == 0 or (given == 1 and is_store and (body.store is None or body.prefix is None)):
        raise InputError(
            "Missing required parameter: 'file_ids', or in its place 'files', or 'store' and 'prefix'.",
            param="file_ids",
            code="missing_required_parameter",
        )
    if given > 1:
        raise InputError(
            "Several sources are given. Give file_ids, files, or store and prefix; call once for each.",
            param="store" if is_store else "files",
            code="invalid_value",
        )


def _add(services: Services, tenant_id: str, collection_id: str, body: DocumentsBody) -> AddedDocuments:
    with transaction(services.sessions) as session:
        collection.get_collection(session, tenant_id, collection_id)
    sources = _sources(services, tenant_id, body)
    with transaction(services.sessions) as session:
        locked = collection.lock_collection(session, tenant_id, collection_id)
        return AddedDocuments.all_of(
            documents.add_documents(session, locked, sources, settings=services.settings.of(DocumentSettings))
        )


def _sources(services: Services, tenant_id: str, body: DocumentsBody) -> list[Source]:
    with transaction(services.sessions) as session:
        if body.file_ids is not None:
            return documents.file_sources(session, tenant_id, dict.fromkeys(body.file_ids))
        if body.files is not None:
            return documents.file_sources(session, tenant_id, {each.file_id: each.name for each in body.files})
        assert body.store is not None, "it was checked"
        assert body.prefix is not None, "it was checked"
        store = stores.get_store(session, tenant_id, body.store)
    silence = services.settings.storage_timeout_seconds
    opened = stores.open_registered(store, writing=False, timeout_seconds=silence)
    return documents.store_sources(opened, body.store, body.prefix)
