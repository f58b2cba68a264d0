"""Refuse at the door what no endpoint can use: NUL characters, which Postgres cannot store, and huge JSON bodies."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import error_response

MAX_JSON_BYTES = 1024 * 1024  # the largest batch create (16 metadata pairs) stays under 64 KiB
UPLOAD_PATH = "/v1/files"  # bounds its own body, by max_file_bytes


class RequestGuard:
    """Answer 400 to NUL in path or query; bound every body but an upload's to MAX_JSON_BYTES."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif "\x00" in scope["path"] or b"%00" in scope["query_string"]:
            message = "The URL holds a NUL character, which no id or name may have. Remove %00."
            await error_response(400, message, code="invalid_value")(scope, receive, send)
        elif scope["path"] == UPLOAD_PATH:
            await self.app(scope, receive, send)
        else:
            await self.app(scope, _bounded(receive, Headers(scope=scope)), send)


def _bounded(receive: Receive, headers: Headers) -> Receive:
    announced, num_bytes = headers.get("content-length", ""), 0

    async def receive_bounded() -> Message:
        nonlocal num_bytes
        if announced.isdecimal() and int(announced) > MAX_JSON_BYTES:
            raise _too_large(int(announced))
        message = await receive()
        num_bytes += len(message.get("body", b""))
        if num_bytes > MAX_JSON_BYTES:
            raise _too_large(num_bytes)
        return message

    return receive_bounded


def _too_large(num_bytes: int) -> HTTPException:
    # FastAPI lets only this class through while it reads a body; the handler makes the envelope of it.
    message = f"The request body has {num_bytes:,} bytes or more; this endpoint allows {MAX_JSON_BYTES:,}. Send less."
    return HTTPException(413, message)
