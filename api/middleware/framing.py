"""Refuses requests with ambiguous framing, and versions of HTTP that this server does not support.

The connection closes after the answer, as it is unknown where the next request begins.
"""

from __future__ import annotations

from http import HTTPStatus

from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors import error_response

_VERSIONS = ("1.0", "1.1")
_FRAMING = {b"content-length", b"transfer-encoding"}
_CLOSE = {"connection": "close"}


class RequestFraming:
    """Answers 400 to Content-Length with Transfer-Encoding (RFC 9112, 6.3), 505 to versions other than 1.0 and 1.1."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif scope["http_version"] not in _VERSIONS:
            message = f"The request is HTTP/{scope['http_version']}; this server speaks {' and '.join(_VERSIONS)}."
            status = HTTPStatus.HTTP_VERSION_NOT_SUPPORTED
            await error_response(status, message, code="version_not_supported", headers=_CLOSE)(scope, receive, send)
        elif {name for name, _ in scope["headers"]} >= _FRAMING:
            message = "The request has Content-Length and Transfer-Encoding; send one of them."
            await error_response(400, message, code="invalid_request", headers=_CLOSE)(scope, receive, send)
        else:
            await self.app(scope, receive, send)
