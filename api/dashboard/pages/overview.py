"""`/`: the service at a glance, for a tenant its own part of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from fastapi import Request, Response
from sqlalchemy.orm import Session

from api.batches.responses import batch_objects
from api.dashboard import formats
from api.dashboard.batch_rows import all_shown_lately, places, tenant_names
from api.dashboard.live import Look, OpenPages, Shown, View, stream
from api.dashboard.recent import Recent
from api.dashboard.rendering import render
from api.dashboard.routing import page_router
from api.dashboard.schedule_rows import schedule_places, schedule_row
from api.dashboard.viewer import ReadingDep, ViewerDep
from api.schemas.batches import BatchObject
from api.services import Services, ServicesDep
from jobs.accounts import budgets
from jobs.batches.lifecycle import find_batches
from jobs.overview import backlog, failures, fleet, reviewing, scheduled, shares
from jobs.overview.backlog import ClassBacklog
from jobs.overview.fleet import ModelFleet
from jobs.overview.listing import BatchProgress, progress_of
from jobs.overview.owned import Owner

router = page_router()

_LATELY_SECONDS = 5.0
_FLEET_SECONDS = 0.9
"""All viewers within a second see the same workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lately:
    """The values that need not be read at each poll."""

    waiting: Sequence[str]
    """Ids of batches, as in the next two fields."""
    at_risk: Sequence[str]
    failed: Sequence[str]
    """Only the first ones are shown: the page counts the error codes of more."""
    seconds: Mapping[str, float]
    """By class, until its last batch is expected to end."""
    tenants: dict[str, str]
    """Names by batch; empty if all are the viewer's own."""
    shares: Sequence[shares.TenantShare]
    schedules: Sequence[scheduled.NextRun]
    reviews: reviewing.OpenReviews

    def shown_failed(self) -> Sequence[str]:
        return self.failed[: backlog.FEW]

    def shown_ids(self) -> Iterator[str]:
        return chain(self.waiting, self.at_risk, self.shown_failed())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Glance:
    """The contents of the page."""

    classes: Sequence[ClassBacklog]
    waiting: Sequence[BatchObject]
    at_risk: Sequence[BatchObject]
    failed: Sequence[BatchObject]
    fleet: Sequence[ModelFleet]
    quota: budgets.Quota | None
    lately: _Lately

    def look(self) -> Look:
        values: dict[str, Shown] = {
            "backlog.lines": formats.number(sum(one.num_lines for one in self.classes)),
            "backlog.tokens": formats.number(sum(one.num_tokens for one in self.classes)),
            "backlog.batches": formats.counted(sum(one.num_batches for one in self.classes), "batch", "batches"),
            "speed": formats.rate(sum(one.tokens_per_second for one in self.fleet)),
            "workers": formats.exact(sum(one.num_live for one in self.fleet)),
            "workers.lost": _lost(sum(one.num_lost for one in self.fleet)),
            "running": formats.number(sum(one.num_running for one in self.fleet)),
            "reviews": formats.exact(self.lately.reviews.num_open),
        }
        if self.quota is not None:
            values |= _budget(self.quota)
        for one in self.classes:
            values |= {
                f"{one.priority}.batches": formats.exact(one.num_batches),
                f"{one.priority}.lines": formats.number(one.num_lines),
                f"{one.priority}.tokens": formats.number(one.num_tokens),
                f"{one.priority}.time": formats.span(self.lately.seconds.get(one.priority)),
            }
        for n, model in enumerate(self.fleet):
            values |= fleet_places(f"m{n}", model)
        for kind, batches in (("w", self.waiting), ("r", self.at_risk), ("f", self.failed)):
            for n, batch in enumerate(batches):
                values |= places(f"{kind}{n}", batch)
        values |= schedule_places(self.lately.schedules)
        rows = [
            (one.priority for one in self.classes),
            *((batch.id for batch in batches) for batches in (self.waiting, self.at_risk)),
            ((batch.id, batch.status, batch.request_counts.failed > 0) for batch in self.failed),
            (one.model for one in self.fleet),
            ((one.name, one.model) for one in self.lately.shares),
            (schedule_row(one) for one in self.lately.schedules),
            (self.lately.reviews.extraction_id,),
        ]
        return Look.of(values, *(tuple(names) for names in rows))


def fleet_places(prefix: str, model: ModelFleet) -> dict[str, Shown]:
    """Return the changing values of a model's workers, by the name of their place."""
    return {
        f"{prefix}.live": formats.exact(model.num_live),
        f"{prefix}.lost": (f"{model.num_lost} lost", "bad") if model.num_lost else ("", ""),
        f"{prefix}.running": formats.number(model.num_running),
        f"{prefix}.occupancy": formats.share(model.num_leased, model.num_slots),
        f"{prefix}.cache": formats.share(model.cache_use, 1),
        f"{prefix}.speed": formats.rate(model.tokens_per_second),
    }


def _lost(num_workers: int) -> str:
    """Return the text after the running requests; no request is lost."""
    return f", {formats.counted(num_workers, 'worker', 'workers')} lost" if num_workers else ""


def _budget(quota: budgets.Quota) -> dict[str, Shown]:
    left = quota.available
    return {
        "spent": formats.number(quota.spent),
        "reserved": formats.number(quota.reserved),
        "left": "no limit" if left is None else formats.number(max(0, left)),
    }


@router.get("/", name="showOverview")
def show(request: Request, session: ReadingDep, *, viewer: ViewerDep, services: ServicesDep) -> Response:
    (lately,) = _lately(session, [viewer.tenant_id], num_failed=failures.MOST_BATCHES)
    rows = {row.id: row for row in find_batches(session, {*lately.shown_ids(), *lately.failed})}
    objects = batch_objects(session, [rows[one] for one in {*lately.shown_ids()} & rows.keys()], services.settings)
    batches = {batch.id: batch for batch in objects}
    (glance,) = _glances(session, {viewer.tenant_id: lately}, batches, fleet.by_model(session))
    failed = [rows[batch_id] for batch_id in lately.failed if batch_id in rows]
    errors = failures.lately(session, failed)  # not live: it reads more than the rest of the page
    return render(request, viewer, "overview.html", glance=glance, look=glance.look(), errors=errors)


@router.get("/live/overview", name="streamOverview")
async def live(request: Request, *, viewer: ViewerDep, services: ServicesDep) -> Response:
    pages: OpenPages = request.app.state.open_pages
    view = View("overview", viewer.tenant_id)
    return stream(pages, view, partial(_look_at, services, pages.recent), viewer_id=viewer.tenant_id)


def _look_at(services: Services, recent: Recent, session: Session, owners: Sequence[Owner]) -> Sequence[Look]:
    def read(unknown: Sequence[tuple[str, Owner]]) -> Sequence[_Lately]:
        return _lately(session, [owner for _, owner in unknown], num_failed=backlog.FEW)

    known = recent.get_all([("lately", owner) for owner in owners], read, seconds=_LATELY_SECONDS)
    lately = dict(zip(owners, known, strict=True))
    batches = _batches(services, recent, session, {batch_id for one in known for batch_id in one.shown_ids()})
    models = recent.get("fleet", partial(fleet.by_model, session), seconds=_FLEET_SECONDS)
    return [glance.look() for glance in _glances(session, lately, batches, models)]


def _glances(
    session: Session,
    lately: Mapping[Owner, _Lately],
    batches: Mapping[str, BatchObject],
    models: Sequence[ModelFleet],
) -> list[_Glance]:
    """Return the page of each owner: a tenant, or with None an operator."""
    classes = backlog.by_class(session, lately.keys())
    tenant_ids = [owner for owner in lately if owner is not None]
    quotas = budgets.quotas(session, tenant_ids) if tenant_ids else {}
    return [
        _Glance(
            classes=classes[owner],
            waiting=[batches[batch_id] for batch_id in one.waiting if batch_id in batches],
            at_risk=[batches[batch_id] for batch_id in one.at_risk if batch_id in batches],
            failed=[batches[batch_id] for batch_id in one.shown_failed() if batch_id in batches],
            fleet=models,
            quota=None if owner is None else quotas.get(owner),  # a tenant may be deleted meanwhile
            lately=one,
        )
        for owner, one in lately.items()
    ]


def _batches(
    services: Services, recent: Recent, session: Session, batch_ids: Collection[str]
) -> dict[str, BatchObject]:
    """Return batches by their ids; those without progress may come from the cache."""

    def read(others: Sequence[tuple[str, BatchProgress]]) -> list[BatchObject | None]:
        ids = [progress.id for _, progress in others]
        batches = all_shown_lately(session, find_batches(session, ids), services.settings, recent=recent)
        by_id = {batch.id: batch for batch in batches}
        return [by_id.get(batch_id) for batch_id in ids]

    keys = [("glance", progress) for progress in progress_of(session, batch_ids).values()]
    batches = recent.get_all(keys, read, seconds=_LATELY_SECONDS)
    return {batch.id: batch for batch in batches if batch is not None}


def _lately(session: Session, owners: Sequence[Owner], *, num_failed: int) -> list[_Lately]:
    waiting, at_risk = backlog.waiting_longest(session, owners), backlog.at_risk(session, owners)
    failed = backlog.failed_lately(session, owners, most=num_failed)
    schedules = scheduled.next_runs(session, owners)
    reviews, seconds = reviewing.open_reviews(session, owners), backlog.seconds_by_class(session, owners)
    return [
        _Lately(
            waiting=waiting[owner],
            at_risk=at_risk[owner],
            failed=failed[owner],
            seconds=seconds[owner],
            tenants=tenant_names(session, [*waiting[None], *at_risk[None], *failed[None]]) if owner is None else {},
            shares=shares.by_tenant(session) if owner is None else (),
            schedules=schedules[owner],
            reviews=reviews[owner],
        )
        for owner in owners
    ]
