"""Counts and times requests by route pattern, which bounds the number of label values."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobs.telemetry.declared import HTTP_FAILURES, HTTP_REQUESTS, HTTP_SECONDS
from jobs.telemetry.meters import Meters


class MeasureRequests:
    """Records each request once it is answered; one without an answer counts as 499, client disconnected."""

    def __init__(self, app: ASGIApp, meters: Meters) -> None:
        self.app, self._meters = app, meters

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
            method, route = _method(scope), _route(scope)
            self._meters.count(HTTP_REQUESTS, method, route, str(status))
            if status >= 500:
                self._meters.count(HTTP_FAILURES)
            self._meters.observe(HTTP_SECONDS, time.perf_counter() - started, method, route)


def _method(scope: Scope) -> str:
    """Return the method as a label; an unknown method must not create a new label value."""
    known = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    return str(scope["method"]) if scope["method"] in known else "other"


def _route(scope: Scope) -> str:
    return str(getattr(scope.get("route"), "path", "unmatched"))
