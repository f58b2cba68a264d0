"""`/batches`: the list of batches, filtered by state, model, name, metadata, day and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response
from pydantic import Field
from sqlalchemy.orm import Session

from api.batches.responses import batch_objects
from api.dashboard.batch_rows import all_shown_lately, places, tenant_names
from api.dashboard.live import Look, OpenPages, Shown, View, stream
from api.dashboard.recent import Recent
from api.dashboard.rendering import render
from api.dashboard.routing import page_router
from api.dashboard.viewer import ReadingDep, ViewerDep
from api.fields import ObjectId, Storable, StrictModel
from api.schemas.batches import BatchObject
from api.services import Services, ServicesDep
from jobs.batches.lifecycle import find_batches
from jobs.overview import listing
from jobs.overview.listing import BatchFilter, BatchProgress
from jobs.served_models import list_models

router = page_router()

_UNCHANGED_SECONDS = 5.0
"""How long a list without progress keeps its other values: how long ago, until when, why a batch waits."""


class ListQuery(StrictModel):
    show: listing.Shown = listing.Shown.ALL
    model: Annotated[Storable, Field(max_length=200)] = ""
    find: Annotated[Storable, Field(max_length=600)] = ""
    since: date | Literal[""] = ""
    until: date | Literal[""] = ""
    cost_from: Annotated[Decimal, Field(ge=0, lt=10**9)] | Literal[""] = ""
    before: ObjectId | None = None

    @property
    def is_filter(self) -> bool:
        """Return whether it leaves batches out."""
        return self != ListQuery(before=self.before)

    def wanted(self) -> BatchFilter:
        return BatchFilter(
            shown=self.show,
            model=self.model or None,
            found=self.find or None,
            since=self.since or None,
            until=self.until or None,
            cost_from=None if self.cost_from == "" else self.cost_from,
            before=self.before,
        )

    def older(self, last_id: str) -> dict[str, Any]:
        """Return the query of the next page."""
        return self.model_dump(mode="json", exclude={"before"}) | {"before": last_id}


@router.get("/batches", name="showBatches")
def show(
    request: Request,
    session: ReadingDep,
    *,
    viewer: ViewerDep,
    services: ServicesDep,
    query: Annotated[ListQuery, Query()],
) -> Response:
    rows, has_more = listing.list_batches(session, viewer.tenant_id, query.wanted())
    batches = batch_objects(session, rows, services.settings)
    return render(
        request,
        viewer,
        "batches.html",
        batches=batches,
        tenants=tenant_names(session, [row.id for row in rows]) if viewer.is_operator else {},
        look=_look_of(batches),
        query=query,
        filters=listing.Shown,
        models=[model.name for model in list_models(session)],
        more=query.older(rows[-1].id) if has_more else None,
    )


@router.get("/live/batches", name="streamBatches")
async def live(
    request: Request, *, viewer: ViewerDep, services: ServicesDep, query: Annotated[ListQuery, Query()]
) -> Response:
    pages: OpenPages = request.app.state.open_pages
    view = View("batches", _List(viewer.tenant_id, query.wanted()))
    return stream(pages, view, partial(_look_at, services, pages.recent), viewer_id=viewer.tenant_id)


@dataclass(frozen=True, slots=True)
class _List:
    """An open page of the list."""

    tenant_id: str | None
    wanted: BatchFilter


_Rows = tuple[BatchProgress, ...]


def _look_at(services: Services, recent: Recent, session: Session, lists: Sequence[_List]) -> Sequence[Look]:
    def read(others: Sequence[tuple[str, _Rows]]) -> Sequence[Look]:
        ids = {row.id for _, rows in others for row in rows}
        batches = all_shown_lately(session, find_batches(session, ids), services.settings, recent=recent)
        by_id = {batch.id: batch for batch in batches}
        return [_look_of([by_id[row.id] for row in rows if row.id in by_id]) for _, rows in others]

    rows = _rows(session, lists)
    return recent.get_all([("batches", rows[one]) for one in lists], read, seconds=_UNCHANGED_SECONDS)


def _rows(session: Session, lists: Sequence[_List]) -> dict[_List, _Rows]:
    """Return the batches of each list, with their progress."""
    rows: dict[_List, _Rows] = {}
    for wanted in {one.wanted for one in lists}:
        owners = [one.tenant_id for one in lists if one.wanted == wanted]
        of_owners = listing.progress(session, owners, wanted)
        rows |= {_List(owner, wanted): of_owners[owner][: listing.PAGE] for owner in owners}
    return rows


def _look_of(batches: list[BatchObject]) -> Look:
    values: dict[str, Shown] = {}
    for n, batch in enumerate(batches):
        values |= places(str(n), batch)
    return Look.of(values, *(batch.id for batch in batches))
