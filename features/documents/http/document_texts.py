"""`/v1/collections/{id}/documents/{id}/text`: the text of a document, in parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query
from pydantic import Field

from api.auth import TenantDep
from api.fields import StrictModel
from api.openapi import failures
from api.services import Services, ServicesDep
from api.spending import ONE_LISTING
from features.documents.collections import collection, documents
from features.documents.extraction.documents.document import text_of
from features.documents.extraction.errors import DocumentError
from features.documents.schemas.collections import DocumentText
from features.documents.tables import CollectionDocument
from jobs.database import transaction
from jobs.errors import ConflictError
from jobs.storage import read_documents

router = APIRouter(prefix="/v1/collections", tags=["extractions"], responses=failures(401, 403, 404, 429, 503))

MAX_CHARACTERS = 100_000
_MAX_OFFSET = 2**40


class TextQuery(StrictModel):
    start: Annotated[int, Field(ge=0, le=_MAX_OFFSET)] = 0
    """First character of the part; offsets count as in the spans of evidence and passages."""
    limit: Annotated[int, Field(ge=1, le=MAX_CHARACTERS)] = 20_000
    """Maximum number of characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadText:
    """A document and its whole text."""

    document: CollectionDocument
    text: str


@router.get(
    "/{collection_id}/documents/{document_id}/text",
    operation_id="retrieveDocumentText",
    responses=failures(409),
    dependencies=[ONE_LISTING],
)
async def text(
    collection_id: str,
    document_id: str,
    *,
    tenant: TenantDep,
    services: ServicesDep,
    query: Annotated[TextQuery, Query()],
) -> DocumentText:
    """Return a part of the text that an extraction or an index has read; raises 409 if none has read the document."""
    read = await read_text(services, tenant.id, collection_id, document_id)
    part = read.text[query.start : query.start + query.limit]
    return DocumentText(
        document_id=document_id,
        document=read.document.name,
        start=query.start,
        end=query.start + len(part),
        num_characters=len(read.text),
        text=part,
    )


async def read_text(services: Services, tenant_id: str, collection_id: str, document_id: str) -> ReadText:
    """Return a document's text. Raises ConflictError if it was not read, or its text is no longer stored."""
    async with services.session_slots:
        document = await run_sync(_find, services, tenant_id, collection_id, document_id)
    async with services.making_turn(tenant_id):
        read = await run_sync(_text, services, document, limiter=services.store.making_threads)
    if read is None:
        why = "has not been read" if document.error is None else f"could not be read: {document.error['message']}"
        raise ConflictError(
            f"Document {document.name!r} {why}. An extraction or an index of its collection reads it.",
            code="document_not_read",
        )
    return ReadText(document=document, text=read)


def _find(services: Services, tenant_id: str, collection_id: str, document_id: str) -> CollectionDocument:
    with transaction(services.sessions) as session:
        parent = collection.get_collection(session, tenant_id, collection_id)
        return documents.get_document(session, parent.id, document_id)


def _text(services: Services, document: CollectionDocument) -> str | None:
    if document.object_key is None:
        return None
    stored = read_documents.find(services.store.storage, document.object_key)
    try:
        return None if stored is None else text_of(stored)
    except DocumentError:  # written by another release; the next reading replaces it
        return None
