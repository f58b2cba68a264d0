"""Pages of an extraction's records: as stored, or with people's decisions applied.

The object store is read between transactions, in its own threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, TypeVar

from anyio.to_thread import run_sync
from fastapi import Response
from pydantic import Field
from sqlalchemy.orm import Session

from api.fields import StrictModel
from api.services import Services
from features.documents import lifecycle, records
from features.documents.records import RecordsFile, RecordsPage
from features.documents.tables import Extraction
from jobs.database import transaction

_MAX_CURSOR = 2**53 - 1

Found = TypeVar("Found")
FindFile = Callable[[Session, Extraction], RecordsFile | None]
Amend = Callable[[Session, Extraction, bytes], bytes]


class ResultsQuery(StrictModel):
    after: Annotated[int, Field(ge=0, le=_MAX_CURSOR)] = 0
    """0, or the `x-next-after` of a page."""
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


async def records_page(
    services: Services, tenant_id: str, extraction_id: str, query: ResultsQuery, *, find: FindFile, amend: Amend
) -> RecordsPage:
    """Return a page of the file that `find` returns, with its content passed through `amend`.

    Raises NotFoundError if the tenant has no such extraction, and what `find` and `amend` raise.
    """
    async with services.session_slots:
        file = await run_sync(_of_extraction, services, tenant_id, extraction_id, find)
    if file is None:
        return records.no_page(query.after)
    storage = services.store.storage
    async with services.making_turn(tenant_id):
        page = await run_sync(
            lambda: records.read_page(storage, file, after=query.after, limit=query.limit),
            limiter=services.store.making_threads,
        )
    async with services.session_slots:
        content = await run_sync(
            _of_extraction,
            services,
            tenant_id,
            extraction_id,
            lambda session, extraction: amend(session, extraction, page.content),
        )
    return replace(page, content=content)


def sent(page: RecordsPage) -> Response:
    """Return the response with a page."""
    headers = {"x-next-after": str(page.after), "x-has-more": "true" if page.has_more else "false"}
    return Response(page.content, media_type="application/x-ndjson", headers=headers)


def _of_extraction(
    services: Services, tenant_id: str, extraction_id: str, look: Callable[[Session, Extraction], Found]
) -> Found:
    with transaction(services.sessions) as session:
        return look(session, lifecycle.EXTRACTIONS.get(session, tenant_id, extraction_id))
