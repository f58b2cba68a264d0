"""`/models`: the models that batches may name, what they cost, and the workers that serve them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import Query, Request, Response
from pydantic import Field
from sqlalchemy.orm import Session

from api.dashboard import formats
from api.dashboard.live import Look, OpenPages, Shown, View, stream
from api.dashboard.rendering import render
from api.dashboard.routing import page_router
from api.dashboard.viewer import ReadingDep, ViewerDep
from api.fields import StrictModel
from api.services import ServicesDep
from jobs.accounts.money import PRICED_TOKENS, in_currency
from jobs.lines.endpoints import LineKind, paths_of
from jobs.overview import fleet
from jobs.overview.fleet import WorkersCounted, WorkerSeen
from jobs.served_models import list_models, offered_models
from jobs.tables import Model

router = page_router()

_PAGE = 50
"""Workers per page."""


class WorkersQuery(StrictModel):
    page: Annotated[int, Field(ge=1, le=1000)] = 1


@router.get("/models", name="showModels")
def show(
    request: Request,
    session: ReadingDep,
    *,
    viewer: ViewerDep,
    services: ServicesDep,
    query: Annotated[WorkersQuery, Query()],
) -> Response:
    counted = fleet.count_workers(session)
    workers = _read(session, query.page, counted)
    models = list_models(session) if viewer.is_operator else offered_models(session)
    return render(
        request,
        viewer,
        "models.html",
        models=[_described(model) for model in models],
        workers=workers,
        counted=counted,
        page=query.page,
        most=_PAGE,
        look=_look_of(counted, workers, query.page),
        currency=services.settings.currency,
        shows_hosts=viewer.is_operator,
    )


@router.get("/live/models", name="streamModels")
async def live(request: Request, *, viewer: ViewerDep, query: Annotated[WorkersQuery, Query()]) -> Response:
    pages: OpenPages = request.app.state.open_pages
    return stream(pages, View("models", query.page), _look_at, viewer_id=viewer.tenant_id)


def _look_at(session: Session, pages: Sequence[int]) -> Sequence[Look]:
    counted = fleet.count_workers(session)
    return [_look_of(counted, _read(session, page, counted), page) for page in pages]


def _read(session: Session, page: int, counted: WorkersCounted) -> Sequence[WorkerSeen]:
    skip = (page - 1) * _PAGE
    return fleet.workers(session, skip=skip, most=_PAGE) if skip < counted.num_all else ()


def _look_of(counted: WorkersCounted, workers: Sequence[WorkerSeen], page: int) -> Look:
    values: dict[str, Shown] = {
        "live": f"{counted.num_live:,} live",
        "lost": (f"{counted.num_lost:,} lost", "bad") if counted.num_lost else ("", ""),
    }
    for n, worker in enumerate(workers):
        values |= {f"{n}.{name}": value for name, value in _values_of(worker).items()}
    rows = [(worker.worker_id, worker.is_live, worker.is_draining, worker.left_out) for worker in workers]
    return Look.of(values, counted.num_all > 0, counted.num_all > _PAGE, page * _PAGE < counted.num_all, *rows)


def _values_of(worker: WorkerSeen) -> dict[str, Shown]:
    """Return the changing values of a worker. The last values of a lost worker's engine are not shown."""
    is_live = worker.is_live
    return {
        "state": _state(worker),
        "seen": formats.ago(worker.heartbeat_at),
        "running": formats.number(worker.num_running if is_live else None),
        "waiting": formats.number(worker.num_waiting if is_live else None),
        "slots": f"{worker.num_leased} / {worker.num_slots}",
        "cache": formats.share(worker.cache_use, 1) if is_live else formats.NOTHING,
    }


def _state(worker: WorkerSeen) -> tuple[str, str]:
    if not worker.is_live:
        return "lost", "bad"
    if worker.is_loading:
        return "loading", "warn"
    if worker.out_reason is not None:
        return f"out: {worker.out_reason}", "bad"
    return ("draining", "warn") if worker.is_draining else ("live", "good")


def _described(model: Model) -> dict[str, str]:
    cached = model.input_price_picos if model.cached_input_price_picos is None else model.cached_input_price_picos
    return {
        "name": model.name,
        "base": model.base or "",
        "endpoints": ", ".join(paths_of(LineKind(model.serves))),
        "input_price": _price(model.input_price_picos),
        "cached_price": _price(cached),
        "output_price": _price(model.output_price_picos),
    }


def _price(picos: int) -> str:
    return in_currency(picos * PRICED_TOKENS)
