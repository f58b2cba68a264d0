"""Begins the trace of a batch with the request that creates it; installed only if spans are exported."""

from __future__ import annotations

import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobs.telemetry.traces import Traces

_PATH = re.compile(r"/v1/batches(/[^/]+/retry)?")


class TraceCreation:
    """Spans requests that create a batch, within the caller's trace; the context is `trace_context` of their state."""

    def __init__(self, app: ASGIApp, traces: Traces) -> None:
        self.app, self._traces = app, traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = _PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if match is None:
            await self.app(scope, receive, send)
            return
        name = "POST /v1/batches/{batch_id}/retry" if match[1] else "POST /v1/batches"
        span = self._traces.begin_root(name, parent=Headers(scope=scope).get("traceparent"))
        scope.setdefault("state", {})["trace_context"] = span.context

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start":
                span.set(**{"http.response.status_code": message["status"]})
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            span.end()
