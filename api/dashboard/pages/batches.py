"""`/batches`: all of them, by state, model and the beginning of an id."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import Query, Request, Response
from pydantic import Field
from sqlalchemy.orm import Session

from api.batches.answers import all_shown
from api.dashboard.batch_rows import all_shown_lately, places, tenant_names
from api.dashboard.live import Look, OpenPages, Shown, stream
from api.dashboard.recent import Recent
from api.dashboard.rendering import render
from api.dashboard.routing import page_router
from api.dashboard.viewer import ReadingDep, ViewerDep
from api.fields import ObjectId, Storable, StrictModel
from api.schemas.batches import BatchObject
from api.services import Services, ServicesDep
from jobs.overview import listing
from jobs.overview.listing import BatchFilter
from jobs.served_models import list_models

router = page_router()

_UNCHANGED_SECONDS = 5.0
"""So long a list in which no batch got on is not asked for its other values: how long ago, until when, why it waits."""


class ListQuery(StrictModel):
    show: listing.Shown = listing.Shown.ALL
    model: Annotated[Storable, Field(max_length=200)] = ""
    id: Annotated[Storable, Field(max_length=100)] = ""
    before: ObjectId | None = None

    def wanted(self) -> BatchFilter:
        return BatchFilter(shown=self.show, model=self.model or None, named=self.id or None, before=self.before)


@router.get("/batches", name="showBatches")
def show(
    request: Request,
    session: ReadingDep,
    *,
    viewer: ViewerDep,
    services: ServicesDep,
    query: Annotated[ListQuery, Query()],
) -> Response:
    found, has_more = listing.list_batches(session, viewer.tenant_id, query.wanted())
    batches = all_shown(session, found, services.settings)
    return render(
        request,
        viewer,
        "batches.html",
        batches=batches,
        tenants=tenant_names(session, found) if viewer.is_operator else {},
        look=_look_of(batches),
        query=query,
        filters=listing.Shown,
        models=[model.name for model in list_models(session)],
        more=found[-1].id if has_more else None,
    )


@router.get("/live/batches", name="streamBatches")
async def live(
    request: Request, *, viewer: ViewerDep, services: ServicesDep, query: Annotated[ListQuery, Query()]
) -> Response:
    pages: OpenPages = request.app.state.open_pages
    key = ("batches", viewer.tenant_id, query.model_dump_json())
    return stream(pages, key, partial(_look, services, pages.recent, viewer.tenant_id, query.wanted()))


def _look(services: Services, recent: Recent, tenant_id: str | None, wanted: BatchFilter, session: Session) -> Look:
    def read() -> Look:
        found, _ = listing.list_batches(session, tenant_id, wanted)
        return _look_of(all_shown_lately(session, found, services.settings, recent=recent))

    seen = ("batches", tenant_id, wanted, listing.progress(session, tenant_id, wanted))
    return recent.get(seen, read, seconds=_UNCHANGED_SECONDS)


def _look_of(batches: list[BatchObject]) -> Look:
    values: dict[str, Shown] = {}
    for n, batch in enumerate(batches):
        values |= places(str(n), batch)
    return Look.of(values, *(batch.id for batch in batches))
