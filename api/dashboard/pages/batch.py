"""`/batches/{id}`: one batch: its progress, why it waits, its errors, and the decisions about it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fastapi import Request, Response
from sqlalchemy.orm import Session

from api.batches.responses import batch_object
from api.dashboard.batch_rows import all_shown_lately, places
from api.dashboard.live import GONE, Look, OpenPages, View, stream
from api.dashboard.offers import BatchOffers, offers_of
from api.dashboard.recent import Recent
from api.dashboard.rendering import render
from api.dashboard.routing import page_router
from api.dashboard.viewer import ReadingDep, ViewerDep
from api.schemas.batches import BatchObject
from api.services import Services, ServicesDep
from jobs import decisions
from jobs.accounts.tenants import find_tenant
from jobs.batches import lifecycle
from jobs.errors import NotFoundError
from jobs.overview import failures
from jobs.states import TERMINAL_BATCH_STATES
from jobs.tables import Batch

router = page_router()


@router.get("/batches/{batch_id}", name="showBatch")
def show(batch_id: str, request: Request, session: ReadingDep, *, viewer: ViewerDep, services: ServicesDep) -> Response:
    row = _find(session, viewer.tenant_id, batch_id)
    batch = batch_object(session, row, services.settings)
    tenant = viewer.tenant if viewer.may_submit else None
    return render(
        request,
        viewer,
        "batch.html",
        batch=batch,
        look=_look_of(batch),
        tenant=find_tenant(session, row.tenant_id).name if viewer.is_operator else None,
        failures=failures.of_batch(session, row),
        looked_at=failures.LOOKED_AT,
        decisions=[(decision, decisions.sentence(decision)) for decision in decisions.read(session, row.id)],
        is_open=row.state not in TERMINAL_BATCH_STATES,
        offers=BatchOffers() if tenant is None else offers_of(session, tenant, row, services.settings),
    )


@router.get("/live/batches/{batch_id}", name="streamShownBatch")
async def live(batch_id: str, request: Request, *, viewer: ViewerDep, services: ServicesDep) -> Response:
    pages: OpenPages = request.app.state.open_pages
    view = View("batch", (viewer.tenant_id, batch_id))
    return stream(pages, view, partial(_look_at, services, pages.recent), viewer_id=viewer.tenant_id)


def _find(session: Session, tenant_id: str | None, batch_id: str) -> Batch:
    if tenant_id is not None:
        return lifecycle.get_batch(session, tenant_id, batch_id)
    batches = lifecycle.find_batches(session, [batch_id])
    if not batches:
        raise NotFoundError(f"There is no batch {batch_id!r}.")
    return batches[0]


def _look_at(
    services: Services, recent: Recent, session: Session, opened: Sequence[tuple[str | None, str]]
) -> Sequence[Look]:
    rows = lifecycle.find_batches(session, {batch_id for _, batch_id in opened})
    owners = {row.id: row.tenant_id for row in rows}
    looks = {batch.id: _look_of(batch) for batch in all_shown_lately(session, rows, services.settings, recent=recent)}
    return [
        looks[batch_id] if batch_id in owners and tenant_id in (None, owners[batch_id]) else GONE
        for tenant_id, batch_id in opened
    ]


def _look_of(batch: BatchObject) -> Look:
    counts, thoughts = batch.request_counts, batch.usage.output_tokens_details.reasoning_tokens
    values = places("b", batch) | {
        "b.completed": f"{counts.completed:,}",
        "b.truncated": f"{counts.truncated:,} truncated" if counts.truncated else "",
        "b.failed": f"{counts.failed:,}",
        "b.input": f"{batch.usage.input_tokens:,}",
        "b.cached": f"{batch.usage.input_tokens_details.cached_tokens:,}",
        "b.output": f"{batch.usage.output_tokens:,}",
        "b.thoughts": f"{thoughts:,} of thoughts" if thoughts else "",
        "b.cost": f"{batch.cost} {batch.currency}",
        "b.running": "–" if batch.running_lines is None else f"{batch.running_lines:,}",
        "b.warning": batch.budget_warning or "",
    }
    return Look.of(values, batch.status, counts.failed > 0)
