"""`/v1/files/{id}/table` and `/requests`: reads an uploaded table, and turns its rows into the input of a batch."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter
from pydantic import AfterValidator, Field

from api.auth import TenantDep
from api.fields import Storable, StrictModel
from api.files.naming import name_object
from api.openapi import failures
from api.services import Services, ServicesDep
from api.spending import ONE_PREVIEW
from features.pipelines.rows.lines.requests import Ask
from features.pipelines.schemas.tables import TableObject, TableRequestsObject
from features.pipelines.sources import uploaded_tables
from features.pipelines.sources.uploaded_tables import UploadedTable
from features.pipelines.spec import checked_parameters
from jobs import files
from jobs.database import transaction
from jobs.tables import File, Tenant

router = APIRouter(prefix="/v1/files", tags=["files"], responses=failures(401, 403, 404, 413, 429, 503))


class RowsBody(StrictModel):
    prompt: Annotated[str, Field(min_length=1, json_schema_extra={"examples": ["Classify: {{ text }}"]})]
    """A template: `{{ column }}` is a column of the row, `row` the whole row."""
    model: Annotated[Storable, Field(min_length=1, max_length=200)]
    parameters: Annotated[dict[str, Any], AfterValidator(checked_parameters)] = Field(default_factory=dict)
    """Parameters of every request, such as `max_tokens`."""
    response_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    """JSON Schema that each answer must fit."""


@router.get("/{file_id}/table", operation_id="readTable", dependencies=[ONE_PREVIEW])
async def read(file_id: str, *, tenant: TenantDep, services: ServicesDep) -> TableObject:
    """Return the columns and first rows of a file whose name ends as CSV, JSONL or Parquet."""
    table = await _open(services, tenant, file_id)
    async with services.preview_turn(tenant.id):
        look = await run_sync(uploaded_tables.look, table, limiter=services.store.preview_threads)
    return TableObject(file_id=file_id, columns=look.columns, rows=look.rows)


@router.post("/{file_id}/requests", operation_id="createRequests", responses=failures(408), dependencies=[ONE_PREVIEW])
async def create(file_id: str, body: RowsBody, *, tenant: TenantDep, services: ServicesDep) -> TableRequestsObject:
    """Render every row of a table with a prompt into a new file, which can be the input of a batch.

    A row that does not fit the prompt is reported and left out. Nothing runs.
    """
    table = await _open(services, tenant, file_id)
    ask = Ask(model=body.model, params=body.parameters, schema=body.response_schema)
    key = files.new_object_key(tenant.id)
    store, settings = services.store, services.settings
    write = partial(uploaded_tables.write_requests, table, body.prompt, ask, store.storage, key, settings=settings)
    async with services.preview_turn(tenant.id):
        written = await run_sync(write, limiter=store.preview_threads)
    file = await name_object(services, tenant, written.new)
    return TableRequestsObject.of(file, written)


async def _open(services: Services, tenant: Tenant, file_id: str) -> UploadedTable:
    async with services.session_slots:
        file = await run_sync(_find, services, tenant.id, file_id)
    name, key, size = file.filename, file.object_key, file.size_bytes
    opened = partial(uploaded_tables.open_table, services.store.storage, key, filename=name, size_bytes=size)
    async with services.preview_turn(tenant.id):
        return await run_sync(opened, limiter=services.store.preview_threads)


def _find(services: Services, tenant_id: str, file_id: str) -> File:
    with transaction(services.sessions) as session:
        return files.get_file(session, tenant_id, file_id)
