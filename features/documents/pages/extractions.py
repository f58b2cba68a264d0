"""`/extractions`: extractions by stage; `/reviews/{id}`: their doubtful values, one after another."""

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
from features.documents import lifecycle, stages
from features.documents.extraction.scoring.verdicts import Reason
from features.documents.http import responses
from features.documents.pages.graphs import graph_of
from features.documents.reviewing import reviewed, reviews
from features.documents.schemas.extractions import ExtractionObject
from features.documents.tables import Collection, Extraction, ExtractionNode
from flows.parts import read_parts
from jobs.database import clock
from jobs.forecasts.outlooks import outlooks
from jobs.settings import Settings
from jobs.states import Scope

router = page_router()

_MOST = 50


@router.get("/extractions", name="showExtractions")
def show(request: Request, session: ReadingDep, *, viewer: ViewerDep, services: ServicesDep) -> Response:
    page = lifecycle.list_extractions(session, viewer.caller.owner().id, collection_id=None, after=None, limit=_MOST)
    objects = responses.extraction_objects(session, page.data, services.settings)
    return render(request, viewer, "extractions.html", extractions=objects, has_more=page.has_more, most=_MOST)


@router.get("/extractions/{extraction_id}", name="showExtraction")
def show_one(
    extraction_id: str, request: Request, session: ReadingDep, *, viewer: ViewerDep, services: ServicesDep
) -> Response:
    row = lifecycle.EXTRACTIONS.get(session, viewer.caller.owner().id, extraction_id)
    settings = services.settings
    body, graph = _read(session, row, settings, outlooks_of=partial(outlooks, currency=settings.currency))
    return render(
        request,
        viewer,
        "extraction.html",
        extraction=body,
        graph=graph,
        look=_look_of(body, graph),
        collection=session.get_one(Collection, row.collection_id),  # even if deleted
        tallies=reviewed.tallies(session, row),
        reasons=Reason,
        is_open=body.ended_at is None,
    )


@router.get("/live/extractions/{extraction_id}", name="streamExtraction")
async def live(extraction_id: str, request: Request, *, viewer: ViewerDep, services: ServicesDep) -> Response:
    tenant_id = viewer.caller.owner().id
    pages: OpenPages = request.app.state.open_pages
    view = View("extraction", (tenant_id, extraction_id))
    return stream(pages, view, one_by_one(partial(_look, services, pages.recent)), viewer_id=tenant_id)


@router.get("/reviews/{extraction_id}", name="showReview")
def review(extraction_id: str, request: Request, session: ReadingDep, *, viewer: ViewerDep) -> Response:
    viewer.caller.require(Scope.SUBMIT)
    row = reviews.completed(session, viewer.caller.owner().id, extraction_id)
    tallies = reviewed.tallies(session, row)
    return render(
        request,
        viewer,
        "review.html",
        path="/extractions",  # the parent page
        extraction=row,
        num_open=sum(tally.num_open for tally in tallies.values()),
    )


def _look(services: Services, recent: Recent, session: Session, of: tuple[str, str]) -> Look:
    settings = services.settings
    outlooks_of = partial(recent_outlooks, settings=settings, recent=recent)
    return _look_of(*_read(session, lifecycle.EXTRACTIONS.get(session, *of), settings, outlooks_of=outlooks_of))


def _read(
    session: Session, row: Extraction, settings: Settings, *, outlooks_of: OutlooksOf
) -> tuple[ExtractionObject, FlowView]:
    parts, currency = read_parts(session, ExtractionNode, row.id), settings.currency
    end = stages.expected_end(row, parts.begun, parts.batches, now=clock(session))
    graph = graph_of(row, parts, outlooks=outlooks_of(session, open_batches(parts)), end=end, currency=currency)
    return ExtractionObject.of(row, parts.begun, parts.all_batches, end=end, currency=currency), graph


def _look_of(extraction: ExtractionObject, graph: FlowView) -> Look:
    return Look.of({**graph.places, "cost": f"{extraction.cost} {extraction.currency}"}, graph.layout)
