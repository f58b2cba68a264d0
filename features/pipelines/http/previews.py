"""`/v1/pipelines/preview`: the lines that a pipeline would send, before it is created."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from anyio.to_thread import run_sync
from fastapi import APIRouter

from api.auth import TenantDep
from api.bodies import described
from api.openapi import failures
from api.services import Services, ServicesDep
from api.spending import ONE_PREVIEW
from features.pipelines import definitions, stores
from features.pipelines.context import RunContext
from features.pipelines.http.definitions import PipelineBody, PipelineBodyDep
from features.pipelines.preview import preview
from features.pipelines.requests import check_requests
from features.pipelines.schemas.pipelines import PreviewObject
from features.pipelines.settings import PipelineSettings
from features.pipelines.sources import batch_rows
from features.pipelines.sources.store_files import TakenFiles, take_files
from features.pipelines.spec import Definition, parse_definition
from features.pipelines.tables import Store
from jobs.accounts.prices import Prices
from jobs.database import transaction
from jobs.tables import Model

router = APIRouter(prefix="/v1/pipelines", tags=["pipelines"], responses=failures(401, 403, 429, 503))


@router.post(
    "/preview",
    operation_id="previewPipeline",
    responses=failures(404, 408, 409, 413),
    openapi_extra=described(PipelineBody),
    dependencies=[ONE_PREVIEW],
)
async def create(body: PipelineBodyDep, *, tenant: TenantDep, services: ServicesDep) -> PreviewObject:
    """Render the first rows of a pipeline's first step and estimate them; nothing is kept and nothing runs."""
    definition = parse_definition(body.model_dump(exclude={"name"}, exclude_none=True))
    threads = services.store.preview_threads
    async with services.preview_turn(tenant.id):
        return await run_sync(_preview, services, tenant.id, body.name, definition, limiter=threads)


def _preview(services: Services, tenant_id: str, name: str, definition: Definition) -> PreviewObject:
    check_requests(definition, services.settings)
    step = definition.steps[0]
    with transaction(services.sessions) as session:
        definitions.check_names(session, tenant_id, definition)
        model = session.get(Model, step.model)
    assert model is not None, "its name was checked"
    now = datetime.now(UTC)  # only for display: nothing is stored
    context = RunContext(
        run_id="preview",
        tenant_id=tenant_id,
        pipeline_id="preview",
        pipeline=name,
        kind="manual",
        scheduled_for=now,
        interval_start=now,
        interval_end=now,
        zone=ZoneInfo("UTC"),
        definition=definition,
    )
    previewed = preview(_taken(services, context), context, services.settings.of(PipelineSettings))
    return PreviewObject.of(previewed, Prices.of(model, step.priority), currency=services.settings.currency)


def _taken(services: Services, context: RunContext) -> TakenFiles:
    """Return the files that the first step takes, as if no run had taken any."""
    step = context.definition.steps[0]
    with transaction(services.sessions) as session:
        if step.source.batch is not None:
            place = "steps.0.source.batch"
            key = batch_rows.answers_key(session, context.tenant_id, step.source.batch, place=place)
            return TakenFiles(files=[], rows=batch_rows.rows(services.store.storage, key))
        assert step.source.store is not None, "a first step takes files or a batch"
        store: Store = stores.get_store(session, context.tenant_id, step.source.store)
    opened = stores.open_registered(store, writing=False, timeout_seconds=services.settings.storage_timeout_seconds)
    return take_files(opened, context, step, lambda files: files)
