"""Adds the tenant's rate limits to each answer, under OpenAI's header names.

The values are in `scope["state"]`, where authentication has put them.
"""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class RateHeaders:
    """Adds the `x-ratelimit-…` headers; there are none for unauthenticated requests."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})

        async def send_with_rates(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(state.get("rate_headers", {}))
            await send(message)

        await self.app(scope, receive, send_with_rates)
