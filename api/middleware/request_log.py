"""Writes one log entry per request: who requested what, and the result.

It logs no content, of a key at most the hint that lists show, and of a URL only the path.
"""

from __future__ import annotations

import logging
import time
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.logs import LineBudget
from jobs.accounts.keys import hint_of, masked

MAX_PATH_CHARACTERS = 200
CLIENT_WENT_AWAY = 499

_STRANGERS_BURST = 100
_STRANGERS_LINES_A_SECOND = 1.0
_PROBES = frozenset({"/healthz", "/readyz", "/metrics"})  # requested every few seconds: not worth a line each

logger = logging.getLogger(__name__)


class RequestLog:
    """Writes an entry once a request is answered; one without an answer counts as 499, client disconnected.

    Requests without a known key, and those refused by rate limits, share a budget of lines: otherwise anyone who can
    reach the port could fill the disk.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._strangers = LineBudget(burst=_STRANGERS_BURST, lines_a_second=_STRANGERS_LINES_A_SECOND)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, request_bytes, response_bytes = CLIENT_WENT_AWAY, 0, 0
        started = time.perf_counter()

        async def count_request() -> Message:
            nonlocal request_bytes
            message = await receive()
            request_bytes += len(message.get("body", b""))
            return message

        async def count_response(message: Message) -> None:
            nonlocal status, response_bytes
            if message["type"] == "http.response.start":
                status = message["status"]
            response_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, count_request, count_response)
        finally:
            ms = round(1000 * (time.perf_counter() - started), 1)
            self._write(scope, status=status, ms=ms, sizes=(request_bytes, response_bytes))

    def _write(self, scope: Scope, *, status: int, ms: float, sizes: tuple[int, int]) -> None:
        fields = _fields_of(scope) | {
            "status": status,
            "ms": ms,
            "request_bytes": sizes[0],
            "response_bytes": sizes[1],
        }
        if fields["route"] in _PROBES and status < HTTPStatus.BAD_REQUEST:
            return
        if fields["key_id"] is None or status == HTTPStatus.TOO_MANY_REQUESTS:
            num_left_out = self._strangers.spend()
            if num_left_out is None:
                return
            if num_left_out:
                fields["num_left_out_before"] = num_left_out
        level, event = _event_of(scope, status)
        if status == HTTPStatus.UNAUTHORIZED:
            fields |= _refused_key(scope)
        logger.log(level, event, extra={"fields": fields})


def _fields_of(scope: Scope) -> dict[str, Any]:
    state, peer = scope.get("state", {}), scope.get("client")
    return {
        "request_id": state.get("request_id"),
        "tenant_id": state.get("tenant_id"),
        "key_id": state.get("key_id"),
        "peer": None if peer is None else f"{peer[0]}:{peer[1]}",
        "method": scope["method"][:20],
        "path": masked(scope["path"])[:MAX_PATH_CHARACTERS],
        "route": getattr(scope.get("route"), "path", None),
    }


def _event_of(scope: Scope, status: int) -> tuple[int, str]:
    if status == HTTPStatus.UNAUTHORIZED:
        return logging.WARNING, "sign-in failed"
    if scope["method"] == "DELETE" and status == HTTPStatus.OK:
        return logging.INFO, "object deleted"
    return logging.INFO, "request answered"


def _refused_key(scope: Scope) -> dict[str, Any]:
    secret = Headers(scope=scope).get("authorization", "").rpartition(" ")[2]
    return {"reason": scope.get("state", {}).get("refusal"), "key_hint": hint_of(secret)}
