"""Builds the HTTP application. Nothing is opened before its lifespan begins, and nothing is global."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
from fastapi import FastAPI

from api.admission.in_flight import InFlight
from api.admission.known_keys import KnownKeys
from api.admission.rate_limits import RateLimiter
from api.batches.looks import BatchLooks
from api.dashboard.live import OpenPages
from api.dashboard.site import install_dashboard
from api.door import Door
from api.errors import install_error_handlers
from api.middleware.layers import install_layers
from api.middleware.tracing import TraceCreation
from api.openapi import DescribedApp, failures
from api.parsing.parser import BodyParser
from api.services import Services
from api.store import RequestStore
from features import FEATURES, meters_of, parts
from features.feature import resolve
from jobs.database import connect, sessions
from jobs.settings import Settings
from jobs.telemetry.declared import API
from jobs.telemetry.meters import Meters
from jobs.telemetry.traces import NO_TRACES, Traces

_SPARE_CONNECTIONS = 3  # for /readyz and /metrics, and to look up keys


def create_app(settings: Settings, *, traces: Traces = NO_TRACES) -> FastAPI:
    """Return the application; it connects to Postgres at the first request, so it starts while Postgres is down."""
    meters = Meters((*API, *meters_of("api")))
    app = DescribedApp(
        title="Tokenmill",
        responses=failures(400, 405, 500, 505),
        line_models=parts("lines"),
        body_models=parts("bodies"),
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
    for router in parts("routers"):
        app.include_router(router)
    if settings.dashboard:
        install_dashboard(app)
    return app


@asynccontextmanager
async def _lifespan(settings: Settings, meters: Meters, app: FastAPI) -> AsyncIterator[None]:
    """Open the services, keep their background tasks running while the application runs, and close them."""
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
    for service in services.of_features.values():
        service.close()
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
        of_features={
            name: resolve(part)(settings, store.storage)
            for feature in FEATURES
            for name, part in feature.services.items()
        },
    )
