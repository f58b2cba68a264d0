"""`/v1/pipelines`: create, read, list, change and delete pipelines."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Query
from pydantic import Field
from sqlalchemy.orm import Session

from api.auth import KeyIdDep, TenantDep
from api.bodies import described, signed_in_body
from api.fields import PageQuery, Storable, StrictModel
from api.openapi import failures
from api.services import Services, ServicesDep
from api.sessions import SessionDep
from api.spending import ONE_ESTIMATE
from features.pipelines import definitions
from features.pipelines.requests import check_requests
from features.pipelines.schemas.pipelines import DeletedPipeline, PipelineObject, PipelinePage
from features.pipelines.settings import PipelineSettings
from features.pipelines.spec import Definition, parse_definition
from features.pipelines.tables import Pipeline
from jobs.database import transaction

router = APIRouter(prefix="/v1/pipelines", tags=["pipelines"], responses=failures(401, 403, 429, 503))

Steps = Annotated[list[dict[str, Any]], Field(description="See docs/pipelines.md.")]


class PipelineBody(StrictModel):
    name: Annotated[Storable, Field(max_length=100)]
    steps: Steps
    max_tokens: int | None = None
    max_cost: Annotated[Storable, Field(max_length=30)] | None = None


class ChangePipelineBody(StrictModel):
    """The fields to change; those left out stay, and `null` removes a cap."""

    steps: Steps | None = None
    max_tokens: int | None = None
    max_cost: Annotated[Storable, Field(max_length=30)] | None = None


PipelineBodyDep = Annotated[PipelineBody, Depends(signed_in_body(PipelineBody))]
_ChangeBodyDep = Annotated[ChangePipelineBody, Depends(signed_in_body(ChangePipelineBody))]


@router.post(
    "",
    operation_id="createPipeline",
    responses=failures(404, 408, 409, 413, 429),
    openapi_extra=described(PipelineBody),
    dependencies=[ONE_ESTIMATE],
)
async def create(
    body: PipelineBodyDep, *, tenant: TenantDep, key_id: KeyIdDep, services: ServicesDep
) -> PipelineObject:
    """Create a pipeline: its prompts, schemas and stores are checked, and nothing runs yet."""
    fields = body.model_dump(exclude={"name"}, exclude_none=True)
    definition = parse_definition(fields)
    make = partial(definitions.create_pipeline, settings=services.settings.of(PipelineSettings), api_key_id=key_id)
    return await _checked(services, tenant.id, definition, lambda session: make(session, tenant.id, body.name, fields))


@router.get("", operation_id="listPipelines")
def list_page(session: SessionDep, *, tenant: TenantDep, query: Annotated[PageQuery, Query()]) -> PipelinePage:
    page = definitions.list_pipelines(session, tenant.id, after=query.after, limit=query.limit)
    return PipelinePage.of([PipelineObject.of(each) for each in page.data], has_more=page.has_more)


@router.get("/{pipeline_id}", operation_id="retrievePipeline", responses=failures(404))
def retrieve(pipeline_id: str, session: SessionDep, *, tenant: TenantDep) -> PipelineObject:
    """Return a pipeline by its id or its name."""
    return PipelineObject.of(definitions.get_pipeline(session, tenant.id, pipeline_id))


@router.patch(
    "/{pipeline_id}",
    operation_id="changePipeline",
    responses=failures(404, 408, 409, 413),
    openapi_extra=described(ChangePipelineBody),
    dependencies=[ONE_ESTIMATE],
)
async def change(
    pipeline_id: str, body: _ChangeBodyDep, *, tenant: TenantDep, key_id: KeyIdDep, services: ServicesDep
) -> PipelineObject:
    """Change a pipeline's steps or caps; runs that have begun keep theirs."""
    async with services.session_slots:
        present = await run_sync(_definition_of, services, tenant.id, pipeline_id)
    changes = body.model_dump(exclude_unset=True)
    fields = {name: value for name, value in (present | changes).items() if value is not None}
    apply = partial(definitions.change_pipeline, definition=fields, api_key_id=key_id)
    return await _checked(
        services, tenant.id, parse_definition(fields), lambda session: apply(session, tenant.id, pipeline_id)
    )


@router.delete("/{pipeline_id}", operation_id="deletePipeline", responses=failures(404))
def delete(pipeline_id: str, session: SessionDep, *, tenant: TenantDep) -> DeletedPipeline:
    """Delete a pipeline and its schedules; its runs stay visible, and queued ones are cancelled."""
    return DeletedPipeline(id=definitions.delete_pipeline(session, tenant.id, pipeline_id).id)


async def _checked(
    services: Services, tenant_id: str, definition: Definition, write: Callable[[Session], Pipeline]
) -> PipelineObject:
    """Run the expensive checks without a session, then write."""
    await run_sync(check_requests, definition, services.settings, limiter=services.store.estimate_threads)
    async with services.session_slots:
        return await run_sync(_written, services, tenant_id, definition, write)


def _written(
    services: Services, tenant_id: str, definition: Definition, write: Callable[[Session], Pipeline]
) -> PipelineObject:
    with transaction(services.sessions) as session:
        definitions.check_names(session, tenant_id, definition)
        return PipelineObject.of(write(session))


def _definition_of(services: Services, tenant_id: str, pipeline_id: str) -> dict[str, Any]:
    with transaction(services.sessions) as session:
        return definitions.get_pipeline(session, tenant_id, pipeline_id).definition
