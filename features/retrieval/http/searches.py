"""`GET /v1/indexes/{id}/search`: passages that answer a question, as many as fit a prompt."""

from __future__ import annotations

import time
from typing import Annotated

import numpy as np
from anyio.to_thread import run_sync
from fastapi import APIRouter, Query
from numpy.typing import NDArray
from pydantic import Field

from api.auth import CallerDep
from api.fields import Storable, StrictModel
from api.openapi import failures
from api.services import Services, ServicesDep
from api.spending import SpendingDep
from features.retrieval import lifecycle
from features.retrieval.http.questions import Asker
from features.retrieval.http.service import search_of
from features.retrieval.meters import INDEX_SEARCH_SECONDS
from features.retrieval.parts import IndexParts, parts_of
from features.retrieval.schemas import PassageOrder, SearchMode, SearchObject
from features.retrieval.searching import Found
from features.retrieval.searching import Query as Question
from jobs.database import transaction
from jobs.errors import InputError
from jobs.states import Scope

router = APIRouter(prefix="/v1/indexes", tags=["indexes"], responses=failures(401, 403, 429, 503))

_AT_ONCE = 8
"""Maximum concurrent searches of a tenant in one API process; most wait for vectors or their turn."""


class SearchQuery(StrictModel):
    query: Annotated[Storable, Field(min_length=1, max_length=4000)]
    top_k: Annotated[int, Field(ge=1, le=200)] = 10
    """Maximum number of passages."""
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Maximum tokens of all passages together, as the index counts; a shorter one may replace one that does not fit."""
    mode: SearchMode | None = None
    """Default: `hybrid` if the index has vectors, else `bm25`."""
    order: PassageOrder = PassageOrder.DOCUMENT
    timeout_seconds: Annotated[float, Field(ge=0.1, le=30)] = 10.0
    """Maximum wait of a hybrid search for the vector of its question."""


@router.get("/{index_id}/search", operation_id="searchIndex", responses=failures(404, 409, 410, 413, 504))
async def search(
    index_id: str,
    *,
    caller: CallerDep,
    services: ServicesDep,
    spending: SpendingDep,
    query: Annotated[SearchQuery, Query()],
) -> SearchObject:
    """Find passages by words, or by words and the vector of the question.

    For the vector the question becomes a batch of one line in your best class, visible and billed like any other, so
    the key also needs the scope `submit`; `mode=bm25` needs neither a batch nor a model.
    """
    tenant = caller.owner()
    with services.in_flight.hold(tenant.id, "searches", allowed=_AT_ONCE):
        async with services.session_slots:
            parts = await run_sync(_parts, services, tenant.id, index_id)
        mode, vector, batch_id = _mode(parts, query.mode), None, None
        if mode is SearchMode.HYBRID:
            caller.require(Scope.SUBMIT)
            asker = Asker(services, tenant, key_id=caller.key_id, spending=spending)
            vector, batch_id = await asker.vector(parts, query.query, timeout_seconds=query.timeout_seconds)
        async with services.making_turn(tenant.id):
            result = await run_sync(_found, services, parts, query, vector, limiter=services.store.making_threads)
    return SearchObject.of(
        result, index_id=index_id, query=query.query, mode=mode, batch_id=batch_id, order=query.order
    )


def _parts(services: Services, tenant_id: str, index_id: str) -> IndexParts:
    with transaction(services.sessions) as session:
        return parts_of(session, lifecycle.INDEXES.get(session, tenant_id, index_id))


def _mode(parts: IndexParts, mode: SearchMode | None) -> SearchMode:
    if parts.embedding_model is not None:
        return mode or SearchMode.HYBRID
    if mode is SearchMode.HYBRID:
        raise InputError(
            f"Index {parts.id!r} has no vectors; search it with mode=bm25, or build one with an embedding_model.",
            param="mode",
            code="invalid_value",
        )
    return SearchMode.BM25


def _found(services: Services, parts: IndexParts, query: SearchQuery, vector: NDArray[np.float32] | None) -> Found:
    questions = [Question(text=query.query, vector=vector)]
    began = time.perf_counter()
    (result,) = search_of(services).searcher.search(parts, questions, top_k=query.top_k, max_tokens=query.max_tokens)
    mode = SearchMode.BM25 if vector is None else SearchMode.HYBRID
    services.meters.observe(INDEX_SEARCH_SECONDS, time.perf_counter() - began, mode.value)
    return result
