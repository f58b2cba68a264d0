"""`/indexes`: passages of collections by stage; `/indexes/{id}`: one of them, and what a search of it finds."""

from __future__ import annotations

from functools import partial

from fastapi import Request, Response
from sqlalchemy.orm import Session

from api.dashboard import formats
from api.dashboard.live import Look, OpenPages, Shown, stream
from api.dashboard.rendering import render
from api.dashboard.routing import page_router
from api.dashboard.stage_rows import stage_places
from api.dashboard.viewer import ReadingDep, ViewerDep
from api.schemas.indexes import IndexObject
from api.services import Services, ServicesDep
from jobs.indexes import lifecycle, stages
from jobs.tables import Collection, PassageIndex

router = page_router()

_MOST = 50


@router.get("/indexes", name="showIndexes")
def show(request: Request, session: ReadingDep, *, viewer: ViewerDep, services: ServicesDep) -> Response:
    page = lifecycle.list_indexes(session, viewer.caller.owner().id, collection_id=None, after=None, limit=_MOST)
    shown = [_shown(session, each, services) for each in page.data]
    return render(request, viewer, "indexes.html", indexes=shown, has_more=page.has_more, most=_MOST)


@router.get("/indexes/{index_id}", name="showIndex")
def show_one(
    index_id: str, request: Request, session: ReadingDep, *, viewer: ViewerDep, services: ServicesDep
) -> Response:
    found = lifecycle.find_index(session, viewer.caller.owner().id, index_id)
    shown = _shown(session, found, services)
    return render(
        request,
        viewer,
        "index.html",
        index=shown,
        look=_look_of(shown),
        collection=session.get_one(Collection, found.collection_id),  # also where it is deleted
        is_open=shown.ended_at is None,
    )


@router.get("/live/indexes/{index_id}", name="streamIndex")
async def live(index_id: str, request: Request, *, viewer: ViewerDep, services: ServicesDep) -> Response:
    tenant_id = viewer.caller.owner().id
    pages: OpenPages = request.app.state.open_pages
    return stream(pages, ("index", tenant_id, index_id), partial(_look, services, tenant_id, index_id))


def _look(services: Services, tenant_id: str, index_id: str, session: Session) -> Look:
    return _look_of(_shown(session, lifecycle.find_index(session, tenant_id, index_id), services))


def _shown(session: Session, index: PassageIndex, services: Services) -> IndexObject:
    begun = stages.stages_of(session, index.id)
    return IndexObject.of(index, begun, stages.batches_of(session, begun), currency=services.settings.currency)


def _look_of(shown: IndexObject) -> Look:
    values: dict[str, Shown] = {"state": (formats.state_name(shown.status), formats.tone(shown.status.value))}
    return Look.of(values | stage_places(shown.stages), shown.status, len(shown.stages), shown.reason)
