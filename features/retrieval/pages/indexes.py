"""`/indexes`: indexes of collections by stage; `/indexes/{id}`: one index, with a search."""

from __future__ import annotations

from functools import partial

from fastapi import Request, Response
from sqlalchemy.orm import Session

from api.dashboard.live import Look, OpenPages, View, one_by_one, stream
from api.dashboard.rendering import render
from api.dashboard.routing import page_router
from api.dashboard.stage_rows import staged_look
from api.dashboard.viewer import ReadingDep, ViewerDep
from api.services import Services, ServicesDep
from features.documents.tables import Collection
from features.retrieval import lifecycle
from features.retrieval.http import responses

router = page_router()

_MOST = 50


@router.get("/indexes", name="showIndexes")
def show(request: Request, session: ReadingDep, *, viewer: ViewerDep, services: ServicesDep) -> Response:
    page = lifecycle.list_indexes(session, viewer.caller.owner().id, collection_id=None, after=None, limit=_MOST)
    objects = responses.index_objects(session, page.data, services.settings)
    return render(request, viewer, "indexes.html", indexes=objects, has_more=page.has_more, most=_MOST)


@router.get("/indexes/{index_id}", name="showIndex")
def show_one(
    index_id: str, request: Request, session: ReadingDep, *, viewer: ViewerDep, services: ServicesDep
) -> Response:
    row = lifecycle.INDEXES.get(session, viewer.caller.owner().id, index_id)
    body = responses.index_object(session, row, services.settings)
    return render(
        request,
        viewer,
        "index.html",
        index=body,
        look=staged_look(body),
        collection=session.get_one(Collection, row.collection_id),  # even if deleted
        is_open=body.ended_at is None,
    )


@router.get("/live/indexes/{index_id}", name="streamIndex")
async def live(index_id: str, request: Request, *, viewer: ViewerDep, services: ServicesDep) -> Response:
    tenant_id = viewer.caller.owner().id
    pages: OpenPages = request.app.state.open_pages
    view = View("index", (tenant_id, index_id))
    return stream(pages, view, one_by_one(partial(_look, services)), viewer_id=tenant_id)


def _look(services: Services, session: Session, of: tuple[str, str]) -> Look:
    return staged_look(responses.index_object(session, lifecycle.INDEXES.get(session, *of), services.settings))
