"""Health checks and metrics of this process. Nothing here needs Redis."""

from __future__ import annotations

import logging

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from sqlalchemy.exc import DBAPIError

from api.errors import unavailable_response
from api.openapi import failures, text_of
from api.schemas.health import Liveness, Readiness
from api.services import Services, ServicesDep
from jobs.database import is_ready, transaction
from jobs.errors import ServiceError
from jobs.metrics import read_samples
from jobs.telemetry.declared import DATABASE_UP, STORAGE_FULL, STORAGE_UP
from jobs.telemetry.meters import Sample, SampleCollector

logger = logging.getLogger(__name__)
router = APIRouter(tags=["health"])


@router.get("/healthz", operation_id="isAlive", responses=failures(503))
async def healthz() -> Liveness:
    """Answer 200 while the event loop runs; needs no thread and no database."""
    return Liveness()


@router.get("/readyz", operation_id="isReady", response_model=Readiness, responses=failures(503))
def readyz(services: ServicesDep) -> Readiness | Response:
    """Answer 200 if Postgres answers with a compatible schema, and the object store recently answered as ours.

    A full store does not make a server unready; `storage` reports it.
    """
    store = services.store
    if not (store.is_answering and is_ready(services.engine)):
        return unavailable_response()
    return Readiness(storage="full" if store.is_full else "ok")


@router.get(
    "/metrics",
    operation_id="readMetrics",
    response_class=Response,
    responses={200: text_of("Prometheus' text format."), **failures(401, 503)},
)
def metrics(services: ServicesDep) -> Response:
    """Return this process's counters and the queue's numbers in Prometheus' text format.

    Without Postgres there are only the counters, with `tokenmill_database_up 0`.
    """
    body = generate_latest(services.meters.registry) + generate_latest(_queue_registry(services))
    return Response(body, media_type=CONTENT_TYPE_LATEST)


def _queue_registry(services: Services) -> CollectorRegistry:
    try:
        with transaction(services.sessions) as session:
            samples = read_samples(session)
    except (ServiceError, DBAPIError) as error:
        logger.warning("no numbers of the queue error=%s", error)
        samples = []
    store = services.store
    states = [
        Sample(meter=DATABASE_UP, value=1 if samples else 0),
        Sample(meter=STORAGE_UP, value=int(store.is_answering)),
        Sample(meter=STORAGE_FULL, value=int(store.is_full)),
    ]
    registry = CollectorRegistry()
    registry.register(SampleCollector(lambda: [*states, *samples]))
    return registry
