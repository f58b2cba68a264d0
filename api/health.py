"""Tell supervisors and Prometheus how this process is: alive, able to serve, its numbers. Nothing here needs Redis."""

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from api.errors import unavailable_response
from api.services import ServicesDep
from jobs.database import is_ready

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Answer as long as the event loop turns; needs no thread and no database."""
    return {"status": "ok"}


@router.get("/readyz")
def readyz(services: ServicesDep) -> Response:
    """Answer 200 when Postgres answers and has this code's schema, else 503."""
    return JSONResponse({"status": "ready"}) if is_ready(services.engine) else unavailable_response()


@router.get("/metrics")
def metrics(services: ServicesDep) -> Response:
    """Answer in Prometheus' text format."""
    return Response(generate_latest(services.registry), media_type=CONTENT_TYPE_LATEST)
