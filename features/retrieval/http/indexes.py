"""`/v1/indexes`: create, get, list and delete indexes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field, StrictInt

from api.auth import KeyIdDep, TenantDep
from api.fields import WHOLE, ObjectId, Storable, StrictModel
from api.openapi import failures
from api.services import ServicesDep
from api.sessions import SessionDep
from api.submission_fields import CompletionWindow, IdempotencyKey, Metadata
from features.retrieval import creating, lifecycle
from features.retrieval.creating import CreateIndex
from features.retrieval.http.responses import index_object, index_objects
from features.retrieval.passage_limits import MAX_PASSAGE_TOKENS
from features.retrieval.schemas import DeletedIndex, IndexObject, IndexPage
from features.retrieval.settings import RetrievalSettings
from jobs.states import AskedPriority

router = APIRouter(prefix="/v1/indexes", tags=["indexes"], responses=failures(401, 403, 429, 503))

_Prefix = Annotated[Storable, Field(max_length=1000)]


class ListQuery(StrictModel):
    collection_id: ObjectId | None = None
    after: ObjectId | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class CreateIndexBody(StrictModel):
    collection_id: ObjectId
    name: Annotated[Storable, Field(min_length=1, max_length=200)] | None = None
    """For display; need not be unique."""
    embedding_model: ObjectId | None = None
    """An embedding model; null: passages are found by their words only."""
    tokenizer: ObjectId | None = None
    """The model whose tokenizer counts passages; null: the embedding model or, without one, two bytes are a token."""
    max_tokens: Annotated[StrictInt, Field(ge=16, le=MAX_PASSAGE_TOKENS), WHOLE] | None = None
    """Of a passage, including its headings; null: 256, or the embedding model's limit if lower."""
    overlap_tokens: Annotated[StrictInt, Field(ge=0, le=MAX_PASSAGE_TOKENS), WHOLE] | None = None
    """Maximum tokens that the next passage repeats; at most a quarter. Null: 32, or a quarter."""
    language: Annotated[Storable, Field(min_length=1, max_length=40)] = "simple"
    """Language of the words, such as `english` or `german`; `simple`: no stemming."""
    query_prefix: _Prefix = ""
    """Prefix that the model expects before questions, such as `query: `."""
    document_prefix: _Prefix = ""
    """Prefix that the model expects before passages."""
    priority: AskedPriority = AskedPriority.NORMAL
    completion_window: CompletionWindow = "24h"
    """For all stages together."""
    metadata: Metadata = None


@router.post("", operation_id="createIndex", responses=failures(404, 408, 409, 413))
def create(
    body: CreateIndexBody,
    session: SessionDep,
    *,
    tenant: TenantDep,
    key_id: KeyIdDep,
    services: ServicesDep,
    idempotency_key: IdempotencyKey = None,
) -> IndexObject:
    """Index all current documents of a collection; repeating the call with its key returns the same index."""
    request = CreateIndex(**body.model_dump(), idempotency_key=idempotency_key)
    created = creating.create_index(session, tenant, request, services.settings.of(RetrievalSettings), key_id=key_id)
    return index_object(session, created, services.settings)


@router.get("", operation_id="listIndexes")
def list_page(
    session: SessionDep, *, tenant: TenantDep, services: ServicesDep, query: Annotated[ListQuery, Query()]
) -> IndexPage:
    page = lifecycle.list_indexes(
        session, tenant.id, collection_id=query.collection_id, after=query.after, limit=query.limit
    )
    return IndexPage.of(index_objects(session, page.data, services.settings), has_more=page.has_more)


@router.get("/{index_id}", operation_id="retrieveIndex", responses=failures(404))
def retrieve(index_id: str, session: SessionDep, *, tenant: TenantDep, services: ServicesDep) -> IndexObject:
    return index_object(session, lifecycle.INDEXES.get(session, tenant.id, index_id), services.settings)


@router.delete("/{index_id}", operation_id="deleteIndex", responses=failures(404))
def delete(index_id: str, session: SessionDep, *, tenant: TenantDep, key_id: KeyIdDep) -> DeletedIndex:
    """Delete an index, built or not, with its batches and their results; its collection stays.

    What was billed stays billed.
    """
    lifecycle.delete_index(session, tenant.id, index_id, by=key_id)
    return DeletedIndex(id=index_id)
