"""Admits requests: authenticates the key, applies the tenant's rates, and waits for the tenant's turn.

This comes before routing, bodies and sessions, so that a tenant's burst delays only itself, and requests with unknown
keys cost one lookup for many keys.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import anyio
from fastapi import Request
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.admission.in_flight import InFlight
from api.admission.rate_limits import Wanted
from api.auth import COOKIE, let_in, read_bearer
from api.errors import http_refusal, refusal, unavailable
from api.middleware.guard import MAX_JSON_BYTES, UPLOAD_PATHS
from api.services import Services
from jobs.accounts.keys import Caller
from jobs.accounts.limits import limits_of
from jobs.accounts.secret_hashes import hash_secret
from jobs.errors import AuthenticationError, RateLimitError, ServiceError

TURNS = 4
"""Requests of a tenant that one process answers at once, not counting those that take longer than TURN_SECONDS."""
TURN_SECONDS = 0.25
"""Time after which a request gives up its turn: it waits for something, and is bounded otherwise."""
BODIES = 250
"""Bodies of a tenant that one process receives at once: a quarter of the connections that it keeps."""
REFUSAL_SECONDS = 0.05
"""How long a refusal holds its turn: a client that retries at once gets 80 refusals a second instead of 1,000."""
_MOST_REFUSALS = 1000
"""Refusals of unknown keys that wait; further ones are answered at once, which bounds memory."""
_DOWNLOAD_PATHS = re.compile(r"/v1/files/[^/]+/content")
"""Requests that wait for the object store, and are bounded otherwise."""
_OPERATORS, _BROWSERS, _STRANGERS = "operators", "browsers", "strangers"
_UNAVAILABLE = (ServiceError, OperationalError, InterfaceError, PoolTimeoutError)


class Door:
    """The innermost middleware. Answers 401, 429, 408, 413 and 503 in place of the application."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if scope["path"].startswith("/v1/") and not _comes_from_browser(headers):
            await self._answer(scope, receive, send, headers)
        elif "cookie" in headers:
            with _Turn(scope["app"].state.services.in_flight, _BROWSERS).held() as turn:
                await turn.take()
                await self.app(scope, receive, turn.until_answer(send))
        else:
            await self.app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        services: Services = scope["app"].state.services
        body = _Body(receive, headers, is_upload=UPLOAD_PATHS.fullmatch(scope["path"]) is not None)
        try:
            caller = await services.known_keys.caller(hash_secret(read_bearer(headers.get("authorization"))))
        except AuthenticationError as error:
            await _wait_as_stranger(services.in_flight)
            await refusal(scope, error)(scope, receive, send)
            return
        except _UNAVAILABLE as error:
            await unavailable(scope, error)(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        with _Turn(services.in_flight, _OPERATORS if caller.tenant is None else caller.tenant.id).held() as turn:
            try:
                await body.gather(services.in_flight, turn.who)
                await turn.take()
                await let_in(scope, services, caller, num_bytes=body.charge())
            except HTTPException as error:
                await http_refusal(Request(scope), error)(scope, receive, send)
                return
            except RateLimitError as error:
                await turn.take()
                await anyio.sleep(REFUSAL_SECONDS)
                await refusal(scope, error)(scope, receive, send)
                return
            if _DOWNLOAD_PATHS.fullmatch(scope["path"]):
                turn.end()
            passed_on = turn.until_body(body.receive) if body.is_upload else body.receive
            try:
                await self.app(scope, passed_on, turn.until_answer(send))
            finally:
                await _charge_rest(services, caller, body)


def _comes_from_browser(headers: Headers) -> bool:
    return "authorization" not in headers and f"{COOKIE}=" in headers.get("cookie", "")


async def _wait_as_stranger(in_flight: InFlight) -> None:
    """Wait for a turn: all requests with unknown keys share one tenant's turns."""
    with suppress(RateLimitError), in_flight.hold(_STRANGERS, "refusals", allowed=_MOST_REFUSALS):
        async with in_flight.turn(_STRANGERS, "requests", allowed=TURNS):
            await anyio.sleep(REFUSAL_SECONDS)


async def _charge_rest(services: Services, caller: Caller, body: _Body) -> None:
    """Take the bytes of a body whose length was not announced."""
    if caller.tenant is not None and body.num_received > body.num_charged:
        cost = Wanted(bytes=body.num_received - body.num_charged)
        await services.rates.spend(caller.tenant.id, limits_of(caller.tenant, services.settings), cost)


@dataclass(slots=True)
class _Turn:
    """A tenant's turn, which ends once: when the answer begins, after TURN_SECONDS, or with the request."""

    in_flight: InFlight
    who: str
    _timer: asyncio.TimerHandle | None = None

    @contextmanager
    def held(self) -> Iterator[_Turn]:
        try:
            yield self
        finally:
            self.end()

    async def take(self) -> None:
        """Wait for the turn, unless it is already held."""
        if self._timer is not None:
            return
        await self.in_flight.take_turn(self.who, "requests", allowed=TURNS)
        self._timer = asyncio.get_running_loop().call_later(TURN_SECONDS, self.end)

    def until_answer(self, send: Send) -> Send:
        async def send_and_end(message: Message) -> None:
            self.end()
            await send(message)

        return send_and_end

    def until_body(self, receive: Receive) -> Receive:
        async def end_and_receive() -> Message:
            self.end()
            return await receive()

        return end_and_receive

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.in_flight.end_turn(self.who, "requests")


@dataclass(slots=True)
class _Body:
    """A request's body: a small one is read before its tenant's turn, so that a slow sender holds none."""

    _receive: Receive
    headers: Headers
    is_upload: bool
    num_received: int = 0
    num_charged: int = 0
    _messages: list[Message] = field(default_factory=list)

    @property
    def _announced(self) -> int | None:
        """Return the announced length in bytes; None if it is unknown, 0 without a body."""
        announced = self.headers.get("content-length", "")
        if announced.isdecimal():
            return int(announced)
        return None if "transfer-encoding" in self.headers else 0

    def charge(self) -> int:
        """Return the bytes to take from the tenant's bucket, before the actual number is known."""
        self.num_charged = self.num_received if self._announced is None else self._announced
        return self.num_charged

    async def gather(self, in_flight: InFlight, who: str) -> None:
        """Read a small body. Raise RateLimitError if too many are being received, and ClientDisconnect."""
        announced = self._announced
        if self.is_upload or announced == 0 or (announced is not None and announced > MAX_JSON_BYTES):
            return
        with in_flight.hold(who, "bodies", allowed=BODIES):
            while self.num_received <= MAX_JSON_BYTES:
                message = await self._next()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                self._messages.append(message)
                if not message.get("more_body", False):
                    return

    async def receive(self) -> Message:
        """Return the messages that were read, then new ones."""
        return self._messages.pop(0) if self._messages else await self._next()

    async def _next(self) -> Message:
        message = await self._receive()
        self.num_received += len(message.get("body", b""))
        return message
