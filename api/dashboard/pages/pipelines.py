"""`/pipelines`: schedules with their next and last runs, and the latest runs; `/pipelines/runs/{id}`: one of them."""

from __future__ import annotations

from fastapi import Request, Response
from sqlalchemy.orm import Session

from api.dashboard.rendering import render
from api.dashboard.routing import page_router
from api.dashboard.viewer import ReadingDep, ViewerDep
from api.schemas.pipelines import RunObject
from jobs.overview import scheduled
from jobs.pipelines import definitions, lifecycle, schedules, steps
from jobs.tables import Run

router = page_router()

_MOST_SCHEDULES = 100
_MOST_RUNS = 50
_MOST_PIPELINES = 100
_NEXT = 5


@router.get("/pipelines", name="showPipelines")
def show(request: Request, session: ReadingDep, *, viewer: ViewerDep) -> Response:
    tenant_id = viewer.caller.owner().id
    pipelines = definitions.list_pipelines(session, tenant_id, limit=_MOST_PIPELINES).data
    runs = lifecycle.list_runs(session, tenant_id, limit=_MOST_RUNS).data
    return render(
        request,
        viewer,
        "pipelines.html",
        pipelines=pipelines,
        names={pipeline.id: pipeline.name for pipeline in pipelines},
        schedules=scheduled.next_runs(session, tenant_id, limit=_MOST_SCHEDULES),
        runs=runs,
    )


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
        pipeline=definitions.get_pipeline(session, tenant_id, schedule.pipeline_id),
        ticks=[] if schedule.paused_at else schedules.upcoming(session, schedule, number=_NEXT),
        runs=runs,
        names={},
    )


@router.get("/pipelines/runs/{run_id}", name="showRun")
def show_run(run_id: str, request: Request, session: ReadingDep, *, viewer: ViewerDep) -> Response:
    tenant_id = viewer.caller.owner().id
    run = lifecycle.get_run(session, tenant_id, run_id)
    return render(
        request,
        viewer,
        "run.html",
        run=_shown(session, run),
        pipeline=definitions.get_pipeline(session, tenant_id, run.pipeline_id),
    )


def _shown(session: Session, run: Run) -> RunObject:
    return RunObject.of(run, steps.steps_of(session, run.id), steps.used(session, run))
