"""Turns unexpected errors into a 500 with the envelope, and ignores disconnected clients."""

from __future__ import annotations

import logging
from http import HTTPStatus

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import error_response, shown_request

logger = logging.getLogger(__name__)


class UnexpectedErrors:
    """Answers 500 with the envelope to unexpected errors and logs them; their text never leaves the process.

    It runs inside the request id middleware, unlike Starlette's own handler for `Exception`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_started = False

        async def watch(message: Message) -> None:
            nonlocal has_started
            has_started = has_started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watch)
        except ClientDisconnect:
            return  # the request's log entry has 499
        except Exception:
            if has_started:
                raise  # the server closes the connection, so that the client sees a broken answer, not a short one
            logger.exception("unexpected error method=%s path=%s request_id=%s", *shown_request(scope))
            message = "The server met an unexpected error; it is in the server's log under this request id."
            response = error_response(HTTPStatus.INTERNAL_SERVER_ERROR, message, code="internal_error")
            await response(scope, receive, send)
