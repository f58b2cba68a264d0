"""Count and time requests; the counters live in a registry that belongs to one app, so nothing is global."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class RequestMetrics:
    """Requests by method, route pattern and status; the pattern keeps the number of label values bounded."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["method", "route", "status"]
        self.requests = Counter("tokenmill_http_requests", "Answered HTTP requests.", labels, registry=registry)
        self.seconds = Histogram(
            "tokenmill_http_request_seconds", "Seconds until an answer was complete.", labels[:2], registry=registry
        )
        self.upload_bytes = Counter("tokenmill_upload_bytes", "Bytes of uploaded file content.", registry=registry)

    def record(self, method: str, route: str, *, status: int, seconds: float) -> None:
        self.requests.labels(method, route, str(status)).inc()
        self.seconds.labels(method, route).observe(seconds)


class MeasureRequests:
    """Record each request once it is answered; one that got no answer counts as 499, the client went away."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, started = 499, time.perf_counter()

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            seconds = time.perf_counter() - started
            self.metrics.record(_method(scope), _route(scope), status=status, seconds=seconds)


def _method(scope: Scope) -> str:
    """A made-up method must not make a new label value."""
    known = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    return str(scope["method"]) if scope["method"] in known else "other"


def _route(scope: Scope) -> str:
    return str(getattr(scope.get("route"), "path", "unmatched"))
