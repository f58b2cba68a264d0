"""Authenticates requests by bearer key or browser cookie, and checks the key's scope for the route.

`jobs.accounts.keys` finds the owner of a key; `api.scopes` has the scope of each route.
"""

from __future__ import annotations

import hmac
from typing import Annotated

import anyio.to_thread
from fastapi import Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from sqlalchemy.orm import Session
from starlette.requests import HTTPConnection
from starlette.types import Scope

from api.admission.rate_limits import Rates, Wanted
from api.origins import is_sent_by
from api.scopes import scope_of
from api.services import Services, ServicesDep
from jobs.accounts import browser_sessions
from jobs.accounts.browser_sessions import SignedIn
from jobs.accounts.keys import Caller, authenticate_hash
from jobs.accounts.limits import limits_of
from jobs.database import transaction
from jobs.errors import AuthenticationError, ForbiddenError, RateLimitError
from jobs.tables import Tenant

COOKIE = "tokenmill_session"
TOKEN_HEADER = "x-csrf-token"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def read_bearer(authorization: str | None) -> str:
    """Return the secret of `Authorization: Bearer <secret>`. Raise AuthenticationError that says what is wrong."""
    if not authorization:
        raise AuthenticationError(
            "The request has no API key. Send it as 'Authorization: Bearer YOUR_KEY'.", code="missing_api_key"
        )
    scheme, _, secret = authorization.strip().partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise AuthenticationError(
            "The Authorization header is not 'Bearer YOUR_KEY'. Send the key in this form.", code="invalid_api_key"
        )
    return secret.strip()


class BearerKey(SecurityBase):
    """The key of a request, declared in the schema; unlike FastAPI's HTTPBearer it explains a wrong header."""

    def __init__(self) -> None:
        self.model = HTTPBearer(description="A key, `tm-…`. Each operation names the scope that it has to have.")
        self.scheme_name = "key"

    async def __call__(self, request: HTTPConnection) -> str | None:
        """Return the secret; None if a browser's cookie takes its place."""
        authorization = request.headers.get("authorization")
        if authorization is None and COOKIE in request.cookies:
            return None
        return read_bearer(authorization)


Secret = Annotated[str | None, Depends(BearerKey())]


async def sign_in(request: Request, services: ServicesDep, *, secret: Secret) -> Caller:
    """Return the caller that the door authenticated, or the one of the request's cookie.

    Raise ForbiddenError if the key lacks the scope that the route needs.
    """
    caller: Caller | None = getattr(request.state, "caller", None)
    if caller is None:
        assert secret is None, "the door authenticates keys"
        async with services.session_slots:
            caller = await anyio.to_thread.run_sync(_caller_of, services, request)
        announced = request.headers.get("content-length", "")
        num_bytes = int(announced) if announced.isdecimal() else 0
        await let_in(request.scope, services, caller, num_bytes=num_bytes)
    needed = scope_of(request.scope["route"])
    assert needed is not None, "a route that needs a key has a scope"
    caller.require(needed)
    return caller


async def let_in(scope: Scope, services: Services, caller: Caller, *, num_bytes: int = 0) -> None:
    """Record the caller, and take the request from its tenant's buckets. Raise RateLimitError."""
    state = scope.setdefault("state", {})
    state["key_id"] = caller.key_id  # for the log
    if caller.tenant is None:
        return
    state["tenant_id"] = caller.tenant.id
    limits, cost = limits_of(caller.tenant, services.settings), Wanted(requests=1, bytes=num_bytes)
    rates = state["rates"] = await services.rates.spend(caller.tenant.id, limits, cost)
    state["rate_headers"] = rates.headers()
    if not rates.passes:
        raise _too_fast(rates)


def _too_fast(rates: Rates) -> RateLimitError:
    limits = rates.limits
    if rates.seconds_to_request > 0:
        what, allowed, seconds = "requests", limits.requests_per_minute, rates.seconds_to_request
    else:
        what, allowed, seconds = "bytes", limits.bytes_per_minute, rates.seconds_to_bytes
    return RateLimitError(
        f"You send {what} too fast: {allowed:,} {what} a minute are allowed. Wait {seconds:.1f} s.",
        retry_after_seconds=seconds,
    )


def _caller_of(services: Services, request: Request) -> Caller:
    with transaction(services.sessions) as session:
        return browser_caller(session, request)[0]


def browser_caller(session: Session, request: Request) -> tuple[Caller, SignedIn]:
    """Return the caller of a request's cookie, and its session.

    Raise AuthenticationError if the session or its key has ended; ForbiddenError if another site's page sent the
    request.
    """
    signed_in = browser_sessions.read(session, request.cookies.get(COOKIE, ""))
    if signed_in is None:
        raise AuthenticationError("You are not signed in, or no longer. Sign in with your key.", code="session_ended")
    if not _is_from_our_pages(request, signed_in):
        raise ForbiddenError("The request comes from another site's page, or lacks its token.", code="foreign_page")
    return authenticate_hash(session, signed_in.key_hash), signed_in


def _is_from_our_pages(request: Request, session: SignedIn) -> bool:
    """Tell whether a request with the cookie was made by one of our pages, not by another site's.

    Reads need no token: the cookie is SameSite=Strict, and other origins cannot read the answer.
    """
    if not is_sent_by(request.headers, "same-origin", "none"):  # none: a typed address or a bookmark
        return False
    if request.method in _SAFE_METHODS:
        return True
    return hmac.compare_digest(request.headers.get(TOKEN_HEADER, "").encode(), session.page_token.encode())


CallerDep = Annotated[Caller, Depends(sign_in)]


async def tenant_of(caller: CallerDep) -> Tenant:
    """Return the key's tenant, for routes that act for a tenant."""
    return caller.owner()


TenantDep = Annotated[Tenant, Depends(tenant_of)]


async def key_id_of(caller: CallerDep) -> str:
    """Return the id of the key that the caller signed in with."""
    return caller.key_id


KeyIdDep = Annotated[str, Depends(key_id_of)]
