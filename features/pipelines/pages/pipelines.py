"""`/pipelines`: schedules with their next and last runs, and the latest runs; `/pipelines/runs/{id}`: one run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fastapi import Request, Response
from sqlalchemy.orm import Session

from api.dashboard import formats
from api.dashboard.batch_rows import recent_outlooks
from api.dashboard.flow_view import FlowView, OutlooksOf
from api.dashboard.flow_waits import open_batches
from api.dashboard.live import Look, OpenPages, Shown, View, one_by_one, stream
from api.dashboard.recent import Recent
from api.dashboard.rendering import render
from api.dashboard.routing import page_router
from api.dashboard.schedule_rows import schedule_places, schedule_row
from api.dashboard.viewer import ReadingDep, ViewerDep
from api.services import Services, ServicesDep
from features.pipelines import definitions, lifecycle, steps
from features.pipelines.pages.graphs import graph_of
from features.pipelines.scheduling import schedules
from features.pipelines.schemas.pipelines import RunObject
from features.pipelines.tables import Pipeline, Run, RunStep, Schedule
from flows.parts import read_parts
from jobs.accounts.money import PICOS_A_MICRO, in_currency
from jobs.database import clock
from jobs.forecasts.outlooks import outlooks
from jobs.overview import scheduled
from jobs.overview.scheduled import NextRun
from jobs.settings import Settings

router = page_router()

_MOST_SCHEDULES = 100
_MOST_RUNS = 50
_MOST_PIPELINES = 100
_NEXT = 5


@router.get("/pipelines", name="showPipelines")
def show(request: Request, session: ReadingDep, *, viewer: ViewerDep) -> Response:
    tenant_id = viewer.caller.owner().id
    pipelines = definitions.list_pipelines(session, tenant_id, limit=_MOST_PIPELINES).data
    next_runs, runs = _rows(session, tenant_id)
    return render(
        request,
        viewer,
        "pipelines.html",
        pipelines=pipelines,
        names={pipeline.id: pipeline.name for pipeline in pipelines},
        schedules=next_runs,
        runs=runs,
        look=_look_of(next_runs, runs),
    )


@router.get("/live/pipelines", name="streamPipelines")
async def live(request: Request, *, viewer: ViewerDep) -> Response:
    tenant_id = viewer.caller.owner().id
    pages: OpenPages = request.app.state.open_pages
    return stream(pages, View("pipelines", tenant_id), one_by_one(_look), viewer_id=tenant_id)


def _look(session: Session, tenant_id: str) -> Look:
    return _look_of(*_rows(session, tenant_id))


def _rows(session: Session, tenant_id: str) -> tuple[Sequence[NextRun], Sequence[Run]]:
    next_runs = scheduled.next_runs(session, [tenant_id], limit=_MOST_SCHEDULES)
    return next_runs[tenant_id], lifecycle.list_runs(session, tenant_id, limit=_MOST_RUNS).data


def _look_of(next_runs: Sequence[NextRun], runs: Sequence[Run]) -> Look:
    rows = tuple(schedule_row(one) for one in next_runs)
    return Look.of(schedule_places(next_runs) | _run_places(runs), rows, _states(runs))


def _run_places(runs: Sequence[Run]) -> dict[str, Shown]:
    """Return the changing values of a table of runs, by the name of their place."""
    values: dict[str, Shown] = {}
    for n, run in enumerate(runs):
        values |= {f"r{n}.state": (formats.state_name(run.state), formats.tone(run.state)), f"r{n}.took": _took(run)}
    return values


def _took(run: Run) -> str:
    if run.started_at is None:
        return formats.NOTHING
    if run.ended_at is None:
        return f"since {formats.ago(run.started_at)}"
    return formats.span((run.ended_at - run.started_at).total_seconds())


def _states(runs: Sequence[Run]) -> tuple[tuple[str, str], ...]:
    return tuple((run.id, run.state) for run in runs)


@router.get("/pipelines/schedules/{schedule_id}", name="showSchedule")
def show_schedule(schedule_id: str, request: Request, session: ReadingDep, *, viewer: ViewerDep) -> Response:
    tenant_id = viewer.caller.owner().id
    schedule = schedules.get_schedule(session, tenant_id, schedule_id)
    runs = lifecycle.list_runs(session, tenant_id, schedule_id=schedule.id, limit=_MOST_RUNS).data
    return render(
        request,
        viewer,
        "schedule.html",
        schedule=schedule,
        pipeline=session.get_one(Pipeline, schedule.pipeline_id),  # it may be deleted
        ticks=[] if schedule.paused_at else schedules.upcoming(session, schedule, number=_NEXT),
        runs=runs,
        names={},
        look=_look_of_one(schedule, runs),
    )


@router.get("/live/pipelines/schedules/{schedule_id}", name="streamSchedule")
async def live_schedule(schedule_id: str, request: Request, *, viewer: ViewerDep) -> Response:
    tenant_id = viewer.caller.owner().id
    pages: OpenPages = request.app.state.open_pages
    view = View("schedule", (tenant_id, schedule_id))
    return stream(pages, view, one_by_one(_look_at_schedule), viewer_id=tenant_id)


def _look_at_schedule(session: Session, of: tuple[str, str]) -> Look:
    tenant_id, schedule_id = of
    schedule = schedules.get_schedule(session, tenant_id, schedule_id)
    runs = lifecycle.list_runs(session, tenant_id, schedule_id=schedule.id, limit=_MOST_RUNS).data
    return _look_of_one(schedule, runs)


def _look_of_one(schedule: Schedule, runs: Sequence[Run]) -> Look:
    return Look.of(_run_places(runs), schedule.next_at, schedule.paused_at, _states(runs))


@router.get("/pipelines/runs/{run_id}", name="showRun")
def show_run(
    run_id: str, request: Request, session: ReadingDep, *, viewer: ViewerDep, services: ServicesDep
) -> Response:
    settings = services.settings
    row = lifecycle.RUNS.get(session, viewer.caller.owner().id, run_id)
    pipeline = session.get_one(Pipeline, row.pipeline_id)  # it may be deleted
    run, graph = _read_run(session, row, pipeline, settings, outlooks_of=partial(outlooks, currency=settings.currency))
    return render(
        request,
        viewer,
        "run.html",
        run=run,
        graph=graph,
        look=_look_of_run(run, graph, currency=settings.currency),
        pipeline=pipeline,
    )


@router.get("/live/pipelines/runs/{run_id}", name="streamRun")
async def live_run(run_id: str, request: Request, *, viewer: ViewerDep, services: ServicesDep) -> Response:
    tenant_id = viewer.caller.owner().id
    pages: OpenPages = request.app.state.open_pages
    view = View("run", (tenant_id, run_id))
    look_at = partial(_look_at_run, services, pages.recent)
    return stream(pages, view, one_by_one(look_at), viewer_id=tenant_id)


def _look_at_run(services: Services, recent: Recent, session: Session, of: tuple[str, str]) -> Look:
    settings, row = services.settings, lifecycle.RUNS.get(session, *of)
    outlooks_of = partial(recent_outlooks, settings=settings, recent=recent)
    pipeline = session.get_one(Pipeline, row.pipeline_id)
    run, graph = _read_run(session, row, pipeline, settings, outlooks_of=outlooks_of)
    return _look_of_run(run, graph, currency=settings.currency)


def _read_run(
    session: Session, row: Run, pipeline: Pipeline, settings: Settings, *, outlooks_of: OutlooksOf
) -> tuple[RunObject, FlowView]:
    parts = read_parts(session, RunStep, row.id)
    outlooks = outlooks_of(session, open_batches(parts))
    end = steps.expected_end(row, parts.begun, parts.batches, now=clock(session))
    graph = graph_of(session, row, parts, pipeline, outlooks=outlooks, end=end, currency=settings.currency)
    return RunObject.of(row, parts.begun, steps.used(session, row), end=end), graph


def _look_of_run(run: RunObject, graph: FlowView, *, currency: str) -> Look:
    changing = {"total_tokens", "cost_micros", "reason"}
    others = run.model_dump_json(exclude=changing)  # any other change reloads the page
    cost = f"{in_currency(run.cost_micros * PICOS_A_MICRO)} {currency}"
    values = {**graph.places, "tokens": formats.exact(run.total_tokens), "cost": cost}
    return Look.of(values, graph.layout, others)
