"""`/v1/runs`: trigger, read, list, cancel, resume and delete runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query
from pydantic import AwareDatetime, Field

from api.auth import KeyIdDep, TenantDep
from api.fields import ObjectId, Storable, StrictModel
from api.openapi import failures
from api.services import ServicesDep
from api.sessions import SessionDep
from features.pipelines import definitions, lifecycle
from features.pipelines.http.responses import run_object, run_objects
from features.pipelines.runs import purging
from features.pipelines.scheduling import schedules
from features.pipelines.schemas.pipelines import DeletedRun, RunObject, RunPage
from features.pipelines.settings import PipelineSettings
from features.pipelines.states import RunState
from jobs.call_limits import MAX_IDEMPOTENCY_KEY

router = APIRouter(prefix="/v1/runs", tags=["pipelines"], responses=failures(401, 403, 429, 503))


IdempotencyKey = Annotated[Storable | None, Header(min_length=1, max_length=MAX_IDEMPOTENCY_KEY)]


class ListQuery(StrictModel):
    pipeline: ObjectId | None = None
    """Its id or its name."""
    schedule: ObjectId | None = None
    """Its id or its name."""
    status: RunState | None = None
    after: ObjectId | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class RunBody(StrictModel):
    pipeline: ObjectId
    """Its id or its name."""
    interval_start: AwareDatetime | None = None
    """Null: the end of the last successful run."""


@router.post("", operation_id="createRun", responses=failures(404, 408, 409, 413, 429))
def create(
    body: RunBody,
    session: SessionDep,
    *,
    tenant: TenantDep,
    key_id: KeyIdDep,
    services: ServicesDep,
    idempotency_key: IdempotencyKey = None,
) -> RunObject:
    """Run a pipeline now, or as soon as its current run has ended."""
    run = schedules.trigger(
        session,
        tenant.id,
        body.pipeline,
        settings=services.settings.of(PipelineSettings),
        interval_start=body.interval_start,
        api_key_id=key_id,
        idempotency_key=idempotency_key,
    )
    return run_object(session, run)


@router.get("", operation_id="listRuns", responses=failures(404))
def list_page(session: SessionDep, *, tenant: TenantDep, query: Annotated[ListQuery, Query()]) -> RunPage:
    pipeline_id = schedule_id = None
    if query.pipeline is not None:
        pipeline_id = definitions.get_pipeline(session, tenant.id, query.pipeline).id
    if query.schedule is not None:
        schedule_id = schedules.get_schedule(session, tenant.id, query.schedule).id
    page = lifecycle.list_runs(
        session,
        tenant.id,
        pipeline_id=pipeline_id,
        schedule_id=schedule_id,
        states=[query.status] if query.status is not None else (),
        after=query.after,
        limit=query.limit,
    )
    return RunPage.of(run_objects(session, page.data), has_more=page.has_more)


@router.get("/{run_id}", operation_id="retrieveRun", responses=failures(404))
def retrieve(run_id: str, session: SessionDep, *, tenant: TenantDep) -> RunObject:
    return run_object(session, lifecycle.RUNS.get(session, tenant.id, run_id))


@router.post("/{run_id}/cancel", operation_id="cancelRun", responses=failures(404, 409))
def cancel(run_id: str, session: SessionDep, *, tenant: TenantDep, key_id: KeyIdDep) -> RunObject:
    """Stop a run and the batch that it waits for; its published files stay."""
    return run_object(session, lifecycle.cancel_run(session, tenant.id, run_id, reason=f"cancelled by {key_id}"))


@router.post("/{run_id}/resume", operation_id="resumeRun", responses=failures(404, 409))
def resume(run_id: str, session: SessionDep, *, tenant: TenantDep) -> RunObject:
    """Resume a failed run where it stopped."""
    return run_object(session, lifecycle.resume_run(session, tenant.id, run_id))


@router.delete("/{run_id}", operation_id="deleteRun", responses=failures(404, 409))
def delete(run_id: str, session: SessionDep, *, tenant: TenantDep) -> DeletedRun:
    """Delete a run that has ended; its published files and its batches stay."""
    purging.delete_run(session, tenant.id, run_id)
    return DeletedRun(id=run_id)
