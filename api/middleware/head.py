"""Answer HEAD wherever GET is answered: the same status and headers, and no content.

Knows no endpoint; what a GET would read after its first bytes is not read.
"""

from __future__ import annotations

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadRequests:
    """Ask the application for GET, pass the beginning of its answer on, and stop it there."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        asked = {**scope, "method": "GET"}  # a copy: the server goes by its own that no content belongs to the answer
        with anyio.CancelScope() as stop:

            async def send_head(message: Message) -> None:
                if message["type"] == "http.response.start":
                    await send(message)
                elif not stop.cancel_called:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    stop.cancel()

            try:
                await self.app(asked, receive, send_head)
            finally:
                if "route" in asked:
                    scope["route"] = asked["route"]  # for the log and the metrics
