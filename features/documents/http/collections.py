"""`/v1/collections`: create, get, list and delete collections."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from api.auth import KeyIdDep, TenantDep
from api.fields import PageQuery, Storable, StrictModel
from api.openapi import failures
from api.services import ServicesDep
from api.sessions import SessionDep
from api.submission_fields import Metadata
from features.documents.collections import collection, documents
from features.documents.schemas.collections import CollectionObject, CollectionPage, DeletedCollection
from features.documents.settings import DocumentSettings

router = APIRouter(prefix="/v1/collections", tags=["extractions"], responses=failures(401, 403, 429, 503))


class CollectionBody(StrictModel):
    name: Annotated[Storable, Field(min_length=1, max_length=200)]
    """For display; need not be unique."""
    metadata: Metadata = None


@router.post("", operation_id="createCollection", responses=failures(408, 413))
def create(body: CollectionBody, session: SessionDep, *, tenant: TenantDep, services: ServicesDep) -> CollectionObject:
    """Create a collection without documents."""
    created = collection.create_collection(
        session, tenant.id, body.name, metadata=body.metadata, settings=services.settings.of(DocumentSettings)
    )
    return CollectionObject.of(created, num_documents=0)


@router.get("", operation_id="listCollections")
def list_page(session: SessionDep, *, tenant: TenantDep, query: Annotated[PageQuery, Query()]) -> CollectionPage:
    page = collection.list_collections(session, tenant.id, after=query.after, limit=query.limit)
    counts = documents.num_documents(session, [each.id for each in page.data])
    objects = [CollectionObject.of(each, num_documents=counts[each.id]) for each in page.data]
    return CollectionPage.of(objects, has_more=page.has_more)


@router.get("/{collection_id}", operation_id="retrieveCollection", responses=failures(404))
def retrieve(collection_id: str, session: SessionDep, *, tenant: TenantDep) -> CollectionObject:
    row = collection.get_collection(session, tenant.id, collection_id)
    return CollectionObject.of(row, num_documents=documents.num_documents(session, [row.id])[row.id])


@router.delete("/{collection_id}", operation_id="deleteCollection", responses=failures(404, 409))
def delete(collection_id: str, session: SessionDep, *, tenant: TenantDep, key_id: KeyIdDep) -> DeletedCollection:
    """Delete a collection, its documents and their texts; files and stores keep their content.

    Extractions that have ended stay with their results.
    """
    collection.delete_collection(session, tenant.id, collection_id, by=key_id)
    return DeletedCollection(id=collection_id)
