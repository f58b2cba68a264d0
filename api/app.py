"""Build the HTTP application. Nothing is opened before its lifespan begins, nothing is global."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
from fastapi import FastAPI

from api import health, models, quota, usage
from api.admin import budgets as admin_budgets
from api.admin import keys as admin_keys
from api.admin import log as admin_log
from api.admin import models as admin_models
from api.admin import tenants as admin_tenants
from api.admin import workers as admin_workers
from api.admission.in_flight import InFlight
from api.admission.known_keys import KnownKeys
from api.admission.rate_limits import RateLimiter
from api.batches import changing, creating, decisions, estimates, events, retries, routes
from api.batches.looks import BatchLooks
from api.browser_sessions import everybodys as everybodys_sessions
from api.browser_sessions import own as own_sessions
from api.dashboard.live import OpenPages
from api.dashboard.site import install_dashboard
from api.door import Door
from api.errors import install_error_handlers
from api.extractions import (
    collections,
    document_texts,
    documents,
    evaluations,
    extractions,
    items,
    page_images,
    reviewed,
    reviews,
)
from api.extractions import creating as extraction_creating
from api.files import routes as files
from api.files import tables
from api.indexes import indexes, searches
from api.middleware.layers import install_layers
from api.middleware.tracing import TraceCreation
from api.openapi import DescribedApp, failures
from api.parsing.parser import BodyParser
from api.part_uploads import routes as uploads
from api.pipelines import definitions, previews, runs, schedules
from api.schemas.batches import ResultLine
from api.schemas.extractions import RecordLine
from api.schemas.reviews import GoldLine
from api.services import Services
from api.store import RequestStore
from api.webhooks import deliveries as webhook_deliveries
from api.webhooks import routes as webhook_routes
from jobs.database import connect, sessions
from jobs.indexes.known_vectors import KnownVectors
from jobs.indexes.searching import Searcher
from jobs.settings import MIB, Settings
from jobs.telemetry.declared import API
from jobs.telemetry.meters import Meters
from jobs.telemetry.traces import NO_TRACES, Traces
from jobs.webhooks.sending import Sender

_SPARE_CONNECTIONS = 3  # for /readyz and /metrics, and to look up keys

# In this order in the schema, and each path is answered by the first that has it.
_BATCHES = (creating, routes, changing, retries, decisions, events, estimates)
_PIPELINES = (previews, definitions, schedules, runs)
_DOCUMENTS = (
    collections,
    documents,
    document_texts,
    page_images,
    reviewed,
    items,
    reviews,
    evaluations,
    extraction_creating,
    extractions,
    indexes,
    searches,
)
_ADMINISTRATION = (
    admin_tenants,
    admin_keys,
    everybodys_sessions,
    admin_budgets,
    admin_models,
    admin_workers,
    admin_log,
)
_WEBHOOKS = (webhook_routes, webhook_deliveries)
_MODULES = (
    *(files, tables, uploads),
    *_BATCHES,
    *_PIPELINES,
    *_DOCUMENTS,
    *(models, usage, quota, own_sessions, health),
    *_ADMINISTRATION,
    *_WEBHOOKS,
)


def create_app(settings: Settings, *, traces: Traces = NO_TRACES) -> FastAPI:
    """Return the application; it connects to Postgres at the first request, so it starts while Postgres is away."""
    meters = Meters(API)
    app = DescribedApp(
        title="Tokenmill",
        responses=failures(400, 405, 500, 505),
        line_models=[ResultLine, RecordLine, GoldLine],
        body_models=[
            creating.CreateBatchBody,
            estimates.EstimateBody,
            definitions.PipelineBody,
            definitions.ChangePipelineBody,
            extraction_creating.CreateExtractionBody,
        ],
        lifespan=partial(_lifespan, settings, meters),
        docs_url=None,  # both pages load their scripts from a CDN; the schema itself is at /openapi.json
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    install_error_handlers(app)
    app.add_middleware(Door)  # inside all others
    if traces.is_on:
        app.add_middleware(TraceCreation, traces=traces)
    install_layers(app, meters, stall_seconds=settings.api_stall_seconds, operator_key=settings.api_operator_key)
    for module in _MODULES:
        app.include_router(module.router)
    if settings.dashboard:
        install_dashboard(app)
    return app


@asynccontextmanager
async def _lifespan(settings: Settings, meters: Meters, app: FastAPI) -> AsyncIterator[None]:
    """Open what requests are answered with, look after it while the application runs, and close it."""
    services = app.state.services = _services(settings, meters)
    looks = app.state.looks = BatchLooks(services)
    open_pages = app.state.open_pages = OpenPages(services)
    await services.store.look()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(services.store.watch)
        tasks.start_soon(services.known_keys.keep_looking)
        tasks.start_soon(services.known_keys.keep_listening, settings.database_url)
        tasks.start_soon(looks.keep_looking)
        tasks.start_soon(open_pages.keep_looking)
        yield
        tasks.cancel_scope.cancel()
    await services.rates.close()
    services.webhooks.close()
    services.parser.close()
    services.engine.dispose()


def _services(settings: Settings, meters: Meters) -> Services:
    engine = connect(settings.database_url, connections=settings.api_connections)
    maker = sessions(engine)
    store = RequestStore(settings, maker)
    return Services(
        settings=settings,
        engine=engine,
        sessions=maker,
        known_keys=KnownKeys(maker),
        session_slots=anyio.Semaphore(settings.api_connections - _SPARE_CONNECTIONS),
        store=store,
        parser=BodyParser(),
        meters=meters,
        rates=RateLimiter(settings.redis_client_url),
        in_flight=InFlight(),
        webhooks=Sender(settings.allowed_networks),
        searcher=Searcher(store.storage, max_bytes=settings.index_memory_mib * MIB),
        known_vectors=KnownVectors(),
    )
