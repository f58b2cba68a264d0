"""The order of the middleware around every endpoint."""

from __future__ import annotations

from fastapi import FastAPI

from api.middleware.framing import RequestFraming
from api.middleware.guard import RequestGuard
from api.middleware.head import HeadRequests
from api.middleware.metrics import MeasureRequests
from api.middleware.rate_headers import RateHeaders
from api.middleware.request_id import RequestIds
from api.middleware.request_log import RequestLog
from api.middleware.unexpected_errors import UnexpectedErrors
from jobs.telemetry.meters import Meters


def install_layers(app: FastAPI, meters: Meters, *, stall_seconds: float, operator_key: str) -> None:
    """Add the middleware, innermost first: the last one added sees a request first, and the answer last."""
    app.add_middleware(HeadRequests)
    app.add_middleware(RequestGuard, stall_seconds=stall_seconds, operator_key=operator_key)
    app.add_middleware(UnexpectedErrors)
    app.add_middleware(MeasureRequests, meters=meters)
    app.add_middleware(RateHeaders)
    app.add_middleware(RequestFraming)
    app.add_middleware(RequestLog)
    app.add_middleware(RequestIds)
