"""`/collections/{id}/documents/{id}`: the text of a document, with a marked place."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response
from pydantic import Field

from api.dashboard.rendering import render
from api.dashboard.routing import page_router
from api.dashboard.viewer import ViewerDep
from api.fields import StrictModel
from api.services import ServicesDep
from api.spending import AT_ONCE
from features.documents.http.document_texts import read_text

router = page_router()

_SHOWN = 20_000
_BEFORE = 2000
_MAX_OFFSET = 2**40


class PlaceQuery(StrictModel):
    start: Annotated[int, Field(ge=0, le=_MAX_OFFSET)] = 0
    """Offset in characters of the text."""
    end: Annotated[int, Field(ge=0, le=_MAX_OFFSET)] = 0
    """End of the marked stretch; nothing is marked unless it is greater than start."""


@router.get("/collections/{collection_id}/documents/{document_id}", name="showDocument")
async def show(
    collection_id: str,
    document_id: str,
    request: Request,
    *,
    viewer: ViewerDep,
    services: ServicesDep,
    query: Annotated[PlaceQuery, Query()],
) -> Response:
    tenant_id = viewer.caller.owner().id
    with services.in_flight.hold(tenant_id, "listings", allowed=AT_ONCE):
        read = await read_text(services, tenant_id, collection_id, document_id)
    text, marked = read.text, query.end > query.start
    first = max(0, query.start - _BEFORE) if marked else query.start
    last = min(first + _SHOWN, len(text))
    start, end = (query.start, min(query.end, last)) if marked else (last, last)
    return render(
        request,
        viewer,
        "document.html",
        path="/extractions",  # the parent page
        document=read.document,
        num_characters=len(text),
        first=first,
        last=last,
        before=text[first:start],
        marked=text[start:end],
        after=text[end:last],
        shown=_SHOWN,
    )
