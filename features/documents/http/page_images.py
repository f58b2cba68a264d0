"""`/v1/collections/{id}/documents/{id}/pages/{number}/image`: an image of a page, drawn by a confined process."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Path, Query, Response
from pydantic import Field

from api.auth import TenantDep
from api.fields import StrictModel
from api.openapi import failures, headers
from api.services import Services, ServicesDep
from api.spending import ONE_LISTING
from features.documents.collections import collection, documents
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.process.document_reader import DocumentReader
from features.documents.extraction.documents.process.drawn_pages import MODULE, packed
from features.documents.extraction.errors import DocumentCode, DocumentError, ExtractionError
from features.documents.tables import CollectionDocument
from features.pipelines import stores
from jobs import files
from jobs.database import transaction
from jobs.errors import InputError, NotFoundError, ServiceError, TooLargeError
from jobs.settings import MIB

router = APIRouter(prefix="/v1/collections", tags=["extractions"], responses=failures(401, 403, 404, 429, 503))

_MAX_PAGE = 10_000
_MAX_BYTES = 64 * MIB
"""Of a document whose pages are drawn: it is held twice, here and in the drawing process."""
_LIMITS = Limits(max_bytes=_MAX_BYTES + MIB, memory_bytes=1024 * MIB, seconds=20.0, times_by_clock=1.0).whole()
_IMAGE = {
    "description": "The page.",
    "headers": headers({}),
    "content": {"image/png": {"schema": {"type": "string", "format": "binary"}}},
}


class ImageQuery(StrictModel):
    max_side: Annotated[int, Field(ge=64, le=4096)] = 1600
    """Maximum pixels of the longer side."""


@router.get(
    "/{collection_id}/documents/{document_id}/pages/{page}/image",
    operation_id="retrievePageImage",
    response_class=Response,
    responses={200: _IMAGE, **failures(413)},
    dependencies=[ONE_LISTING],
)
async def image(
    collection_id: str,
    document_id: str,
    page: Annotated[int, Path(ge=0, le=_MAX_PAGE)],
    *,
    tenant: TenantDep,
    services: ServicesDep,
    query: Annotated[ImageQuery, Query()],
) -> Response:
    """Return a page of a PDF or an image, counted from 0, as PNG; boxes of evidence are in points of the same page."""
    async with services.preview_turn(tenant.id):
        drawn = await run_sync(
            lambda: _drawn(services, tenant.id, collection_id, document_id, page=page, max_side=query.max_side),
            limiter=services.store.preview_threads,
        )
    return Response(drawn, media_type="image/png")


def _drawn(
    services: Services, tenant_id: str, collection_id: str, document_id: str, *, page: int, max_side: int
) -> bytes:
    with transaction(services.sessions) as session:
        parent = collection.get_collection(session, tenant_id, collection_id)
        document = documents.get_document(session, parent.id, document_id)
    if document.size_bytes > _MAX_BYTES:
        raise TooLargeError(
            f"The document has {document.size_bytes:,} bytes; pages are drawn for up to {_MAX_BYTES:,}. Split it.",
            param="document_id",
        )
    content = _content(services, tenant_id, document)
    request = packed(content, page=page, max_side=max_side)
    try:
        with DocumentReader(_LIMITS, module=MODULE) as reader:
            return reader.read_stored(request, document.name)
    except DocumentError as error:
        kind = NotFoundError if error.code == DocumentCode.TOO_MANY_PAGES else InputError
        raise kind(error.message, param="page", code=str(error.code)) from None
    except ExtractionError as error:
        raise ServiceError(str(error)) from None


def _content(services: Services, tenant_id: str, document: CollectionDocument) -> bytes:
    storage, silence = services.store.storage, services.settings.storage_timeout_seconds
    if document.file_id is not None:
        with transaction(services.sessions) as session:
            key = files.get_file(session, tenant_id, document.file_id).object_key
        return b"".join(storage.iter_chunks(key))
    assert document.store is not None, "it has a file or a store"
    assert document.key is not None, "it has a file or a store"
    with transaction(services.sessions) as session:
        store = stores.get_store(session, tenant_id, document.store)
    with closing(stores.open_registered(store, writing=False, timeout_seconds=silence).open(document.key)) as file:
        return file.read(_MAX_BYTES)
