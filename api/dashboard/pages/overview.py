"""`/`: the service at a glance, or what of it is a tenant's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from fastapi import Request, Response
from sqlalchemy.orm import Session

from api.dashboard import formats
from api.dashboard.batch_rows import all_shown_lately, places, tenant_names
from api.dashboard.live import Look, OpenPages, Shown, stream
from api.dashboard.recent import Recent
from api.dashboard.rendering import render
from api.dashboard.routing import page_router
from api.dashboard.schedule_rows import schedule_places
from api.dashboard.viewer import ReadingDep, ViewerDep
from api.schemas.batches import BatchObject
from api.services import Services, ServicesDep
from jobs.accounts import budgets
from jobs.batches.lifecycle import find_batches
from jobs.overview import backlog, failures, fleet, reviewing, scheduled, shares
from jobs.overview.backlog import ClassBacklog
from jobs.overview.fleet import ModelFleet
from jobs.overview.listing import progress_of

router = page_router()
T = TypeVar("T")

_LATELY_SECONDS = 5.0
_FLEET_SECONDS = 0.9
"""All who look in one second see the same workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Glance:
    """What the page shows."""

    classes: Sequence[ClassBacklog]
    waiting: Sequence[BatchObject]
    at_risk: Sequence[BatchObject]
    failed: Sequence[BatchObject]
    fleet: Sequence[ModelFleet]
    tenants: dict[str, str]
    """Names, by batch; empty where all are the viewer's own."""
    quota: budgets.Quota | None
    shares: Sequence[shares.TenantShare]
    schedules: Sequence[scheduled.NextRun]
    reviews: reviewing.OpenReviews

    def look(self) -> Look:
        values: dict[str, Shown] = {
            "backlog.lines": formats.number(sum(one.num_lines for one in self.classes)),
            "backlog.tokens": formats.number(sum(one.num_tokens for one in self.classes)),
            "backlog.batches": formats.number(sum(one.num_batches for one in self.classes)),
            "speed": formats.rate(sum(one.tokens_per_second for one in self.fleet)),
            "workers": formats.exact(sum(one.num_live for one in self.fleet)),
            "workers.lost": f"{lost} lost" if (lost := sum(one.num_lost for one in self.fleet)) else "",
            "running": formats.number(sum(one.num_running for one in self.fleet)),
            "reviews": formats.exact(self.reviews.num_open),
        }
        if self.quota is not None:
            values |= _budget(self.quota)
        for one in self.classes:
            values |= {
                f"{one.priority}.batches": formats.exact(one.num_batches),
                f"{one.priority}.lines": formats.number(one.num_lines),
                f"{one.priority}.tokens": formats.number(one.num_tokens),
                f"{one.priority}.time": formats.span(one.seconds),
            }
        for n, model in enumerate(self.fleet):
            values |= fleet_places(f"m{n}", model)
        for kind, listed in (("w", self.waiting), ("r", self.at_risk), ("f", self.failed)):
            for n, batch in enumerate(listed):
                values |= places(f"{kind}{n}", batch)
        values |= schedule_places(self.schedules)
        rows = [
            (one.priority for one in self.classes),
            *((batch.id for batch in listed) for listed in (self.waiting, self.at_risk, self.failed)),
            (one.model for one in self.fleet),
            ((one.name, one.model) for one in self.shares),
            ((one.schedule_id, one.last_run_id, one.paused_at) for one in self.schedules),
        ]
        return Look.of(values, *(tuple(names) for names in rows))


def fleet_places(prefix: str, model: ModelFleet) -> dict[str, Shown]:
    """Return what of a model's workers changes, by the name of its place."""
    return {
        f"{prefix}.live": formats.exact(model.num_live),
        f"{prefix}.lost": (f"{model.num_lost} lost", "bad") if model.num_lost else ("", ""),
        f"{prefix}.running": formats.number(model.num_running),
        f"{prefix}.occupancy": formats.share(model.num_leased, model.num_slots),
        f"{prefix}.cache": formats.share(model.cache_use, 1),
        f"{prefix}.speed": formats.rate(model.tokens_per_second),
    }


def _budget(quota: budgets.Quota) -> dict[str, Shown]:
    left = quota.available
    return {
        "spent": formats.number(quota.spent),
        "reserved": formats.number(quota.reserved),
        "left": "no limit" if left is None else formats.number(max(0, left)),
    }


@router.get("/", name="showOverview")
def show(request: Request, session: ReadingDep, *, viewer: ViewerDep, services: ServicesDep) -> Response:
    glance = _glance(services, Recent(), viewer.tenant_id, session)
    errors = failures.lately(session, viewer.tenant_id)  # not live: it reads more than what else is on the page
    return render(request, viewer, "overview.html", glance=glance, look=glance.look(), errors=errors)


@router.get("/live/overview", name="streamOverview")
async def live(request: Request, *, viewer: ViewerDep, services: ServicesDep) -> Response:
    pages: OpenPages = request.app.state.open_pages
    looking = partial(_look, services, pages.recent, viewer.tenant_id)
    return stream(pages, ("overview", viewer.tenant_id), looking)


def _look(services: Services, recent: Recent, tenant_id: str | None, session: Session) -> Look:
    return _glance(services, recent, tenant_id, session).look()


def _glance(services: Services, recent: Recent, tenant_id: str | None, session: Session) -> _Glance:
    def lately(read: Callable[[Session, str | None], T]) -> T:
        """Return what need not be asked at each look."""
        return recent.get((read, tenant_id), partial(read, session, tenant_id), seconds=_LATELY_SECONDS)

    def read_batches() -> list[BatchObject]:
        return all_shown_lately(session, find_batches(session, ids), services.settings, recent=recent)

    listed = lately(_listed)
    ids = sorted({*listed.waiting, *listed.at_risk, *listed.failed})
    seen = ("glance", tenant_id, progress_of(session, ids))
    shown = {batch.id: batch for batch in recent.get(seen, read_batches, seconds=_LATELY_SECONDS)}
    return _Glance(
        classes=backlog.by_class(session, tenant_id),
        waiting=[shown[batch_id] for batch_id in listed.waiting if batch_id in shown],
        at_risk=[shown[batch_id] for batch_id in listed.at_risk if batch_id in shown],
        failed=[shown[batch_id] for batch_id in listed.failed if batch_id in shown],
        fleet=recent.get("fleet", partial(fleet.by_model, session), seconds=_FLEET_SECONDS),
        tenants=listed.tenants,
        quota=None if tenant_id is None else budgets.quota(session, tenant_id),
        shares=lately(_shares),
        schedules=lately(scheduled.next_runs),
        reviews=lately(reviewing.open_reviews),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """The ids of batches that are told of one by one."""

    waiting: Sequence[str]
    at_risk: Sequence[str]
    failed: Sequence[str]
    tenants: dict[str, str]
    """Names, by batch; empty where all are one tenant's."""


def _listed(session: Session, tenant_id: str | None) -> _Listed:
    waiting, at_risk = backlog.waiting_longest(session, tenant_id), backlog.at_risk(session, tenant_id)
    failed = backlog.failed_lately(session, tenant_id)
    return _Listed(
        waiting=[batch.id for batch in waiting],
        at_risk=[batch.id for batch in at_risk],
        failed=[batch.id for batch in failed],
        tenants=tenant_names(session, [*waiting, *at_risk, *failed]) if tenant_id is None else {},
    )


def _shares(session: Session, tenant_id: str | None) -> Sequence[shares.TenantShare]:
    return shares.by_tenant(session) if tenant_id is None else ()
