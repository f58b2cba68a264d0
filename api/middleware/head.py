"""Answers HEAD wherever GET is answered: the same status and headers without content.

What a GET would read after its first bytes is not read.
"""

from __future__ import annotations

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadRequests:
    """Calls the application with GET, passes on the start of its answer, and stops it there."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        get_scope = {**scope, "method": "GET"}  # a copy: the server needs the original to expect no content
        with anyio.CancelScope() as stop:

            async def send_head(message: Message) -> None:
                if message["type"] == "http.response.start":
                    await send(message)
                elif not stop.cancel_called:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    stop.cancel()

            try:
                await self.app(get_scope, receive, send_head)
            finally:
                if "route" in get_scope:
                    scope["route"] = get_scope["route"]  # for the log and the metrics
