"""`/indexes`: indexes of collections by stage; `/indexes/{id}`: one index, with a search."""

from __future__ import annotations

from functools import partial

from fastapi import Request, Response
from sqlalchemy.orm import Session

from api.dashboard.batch_rows import recent_outlooks
from api.dashboard.flow_view import FlowView, OutlooksOf
from api.dashboard.flow_waits import open_batches
from api.dashboard.live import Look, OpenPages, View, one_by_one, stream
from api.dashboard.recent import Recent
from api.dashboard.rendering import render
from api.dashboard.routing import page_router
from api.dashboard.viewer import ReadingDep, ViewerDep
from api.services import Services, ServicesDep
from features.documents.tables import Collection
from features.retrieval import lifecycle, stages
from features.retrieval.http import responses
from features.retrieval.pages.graphs import graph_of
from features.retrieval.schemas import IndexObject
from features.retrieval.tables import IndexNode, PassageIndex
from flows.parts import read_parts
from jobs.database import clock
from jobs.forecasts.outlooks import outlooks
from jobs.settings import Settings

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
    settings = services.settings
    body, graph = _read(session, row, settings, outlooks_of=partial(outlooks, currency=settings.currency))
    return render(
        request,
        viewer,
        "index.html",
        index=body,
        graph=graph,
        look=_look_of(body, graph),
        collection=session.get_one(Collection, row.collection_id),  # even if deleted
        is_open=body.ended_at is None,
    )


@router.get("/live/indexes/{index_id}", name="streamIndex")
async def live(index_id: str, request: Request, *, viewer: ViewerDep, services: ServicesDep) -> Response:
    tenant_id = viewer.caller.owner().id
    pages: OpenPages = request.app.state.open_pages
    view = View("index", (tenant_id, index_id))
    return stream(pages, view, one_by_one(partial(_look, services, pages.recent)), viewer_id=tenant_id)


def _look(services: Services, recent: Recent, session: Session, of: tuple[str, str]) -> Look:
    settings = services.settings
    outlooks_of = partial(recent_outlooks, settings=settings, recent=recent)
    return _look_of(*_read(session, lifecycle.INDEXES.get(session, *of), settings, outlooks_of=outlooks_of))


def _read(
    session: Session, row: PassageIndex, settings: Settings, *, outlooks_of: OutlooksOf
) -> tuple[IndexObject, FlowView]:
    parts, currency = read_parts(session, IndexNode, row.id), settings.currency
    end = stages.expected_end(row, parts.begun, parts.batches, now=clock(session))
    graph = graph_of(row, parts, outlooks=outlooks_of(session, open_batches(parts)), end=end, currency=currency)
    return IndexObject.of(row, parts.begun, parts.batches, end=end, currency=currency), graph


def _look_of(index: IndexObject, graph: FlowView) -> Look:
    return Look.of({**graph.places, "cost": f"{index.cost} {index.currency}"}, graph.layout)
