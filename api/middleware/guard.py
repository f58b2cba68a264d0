"""Refuses what no endpoint accepts: NUL characters, huge or endless bodies, operators' paths without their key."""

from __future__ import annotations

import hmac
import math
import re
from http import HTTPStatus

import anyio
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import error_response

MAX_JSON_BYTES = 64 * 1024  # 16 metadata pairs at their longest are half of it
MAX_INLINE_BYTES = 8 * 1024 * 1024  # for a batch with its requests in the body
MAX_DEFINITION_BYTES = 2 * 1024 * 1024  # a pipeline may have 1 MiB, and JSON escapes add to it
INLINE_PATHS = frozenset({"/v1/batches", "/v1/estimates"})
PIPELINE_PATHS = re.compile("/v1/pipelines(/[^/]+)?")
UPLOAD_PATHS = re.compile("/v1/files|/v1/files/several|/v1/uploads/[^/]+/parts")  # bound their own bodies
OPERATOR_PATHS = frozenset({"/metrics", "/openapi.json"})


class RequestGuard:
    """Answers 400 to NUL in path or query, and 401 on operators' paths without the `operator_key`, if there is one.

    Limits every body except an upload's to MAX_JSON_BYTES (with requests MAX_INLINE_BYTES, with a pipeline
    MAX_DEFINITION_BYTES) and to `stall_seconds`; for an upload `stall_seconds` limits only each pause.
    """

    def __init__(self, app: ASGIApp, *, stall_seconds: float, operator_key: str) -> None:
        self.app = app
        self._stall_seconds = stall_seconds
        self._operator_key = operator_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif "\x00" in scope["path"] or b"%00" in scope["query_string"]:
            message = "The URL holds a NUL character, which no id or name may have. Remove %00."
            await error_response(400, message, code="invalid_value")(scope, receive, send)
        elif self._operator_key and scope["path"] in OPERATOR_PATHS and not self._is_operator(scope):
            await self._refuse(scope, receive, send)
        else:
            headers, is_upload = Headers(scope=scope), UPLOAD_PATHS.fullmatch(scope["path"]) is not None
            bounded = _timely(receive, self._stall_seconds, is_extended=is_upload)
            await self.app(scope, bounded if is_upload else _short(bounded, headers, _allowed(scope["path"])), send)

    def _is_operator(self, scope: Scope) -> bool:
        authorization = Headers(scope=scope).get("authorization", "")
        return hmac.compare_digest(authorization.encode(), f"Bearer {self._operator_key}".encode())

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        code = "invalid_api_key" if "authorization" in Headers(scope=scope) else "missing_api_key"
        scope.setdefault("state", {})["refusal"] = code  # for the log
        message = f"{scope['path']} is for operators. Send TOKENMILL_API_OPERATOR_KEY as 'Authorization: Bearer …'."
        headers = {"www-authenticate": "Bearer"}
        await error_response(HTTPStatus.UNAUTHORIZED, message, code=code, headers=headers)(scope, receive, send)


def _allowed(path: str) -> int:
    """Return the limit of a body; more than MAX_JSON_BYTES is only for endpoints that read it after signing in."""
    if path in INLINE_PATHS:
        return MAX_INLINE_BYTES
    return MAX_DEFINITION_BYTES if PIPELINE_PATHS.fullmatch(path) else MAX_JSON_BYTES


def _timely(receive: Receive, seconds: float, *, is_extended: bool) -> Receive:
    """Limit the time for the whole body, or with `is_extended` for each piece; later messages are not timed."""
    deadline, is_complete = math.inf, False

    async def receive_timely() -> Message:
        nonlocal deadline, is_complete
        if is_complete:
            return await receive()
        if is_extended or deadline == math.inf:
            deadline = anyio.current_time() + seconds
        try:
            with anyio.fail_after(deadline - anyio.current_time()):
                message = await receive()
        except TimeoutError:
            raise _too_slow(seconds) from None
        is_complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    return receive_timely


def _short(receive: Receive, headers: Headers, allowed: int) -> Receive:
    announced, num_bytes = headers.get("content-length", ""), 0

    async def receive_bounded() -> Message:
        nonlocal num_bytes
        if announced.isdecimal() and int(announced) > allowed:
            raise _too_large(int(announced), allowed)
        message = await receive()
        num_bytes += len(message.get("body", b""))
        if num_bytes > allowed:
            raise _too_large(num_bytes, allowed)
        return message

    return receive_bounded


# FastAPI lets only HTTPException through while it reads a body; its handler builds the envelope.


def _too_slow(seconds: float) -> HTTPException:
    message = f"The request body did not arrive within {seconds:g} s. Send it again, without a pause."
    return HTTPException(HTTPStatus.REQUEST_TIMEOUT, message, headers={"connection": "close"})


def _too_large(num_bytes: int, allowed: int) -> HTTPException:
    message = f"The request body has {num_bytes:,} bytes or more; this endpoint allows {allowed:,}. Send less."
    return HTTPException(413, message)
