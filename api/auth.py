"""Find who is behind a request's bearer key, and whether the key may ask for this route.

Whose key it is, `jobs.accounts.keys` knows, and `api.scopes` what a route needs.
"""

from __future__ import annotations

from typing import Annotated

import anyio.to_thread
from fastapi import Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.requests import HTTPConnection

from api.scopes import scope_of
from api.services import Services, ServicesDep
from jobs.accounts.keys import Caller, authenticate
from jobs.accounts.limits import limits_of
from jobs.database import transaction
from jobs.errors import AuthenticationError, RateLimitError
from jobs.tables import Tenant


def read_bearer(authorization: str | None) -> str:
    """Return the secret of `Authorization: Bearer <secret>`. Raises AuthenticationError saying what is wrong."""
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
    """The key of a request, declared to the schema; unlike FastAPI's HTTPBearer it says what is wrong with a header."""

    def __init__(self) -> None:
        self.model = HTTPBearer(description="A key, `tm-…`. Each operation names the scope that it has to have.")
        self.scheme_name = "key"

    async def __call__(self, request: HTTPConnection) -> str:
        return read_bearer(request.headers.get("authorization"))


Secret = Annotated[str, Depends(BearerKey())]


async def sign_in(request: Request, services: ServicesDep, *, secret: Secret) -> Caller:
    """Authenticate in a transaction of its own: nothing is held while an upload comes in, or a broker is asked.

    Raises ForbiddenError where the key has not the scope that the route needs.
    """
    async with services.session_slots:
        caller = await anyio.to_thread.run_sync(_caller_of, services, secret)
    request.state.key_id = caller.key_id  # for the log
    if caller.tenant is not None:
        request.state.tenant_id = caller.tenant.id
        await _spend_request(request, services, tenant=caller.tenant)
    needed = scope_of(request.scope["route"])
    assert needed is not None, "a route that asks for a key has a scope"
    caller.require(needed)
    return caller


async def _spend_request(request: Request, services: Services, *, tenant: Tenant) -> None:
    rates = await services.rates.spend(tenant.id, limits_of(tenant, services.settings), requests=1)
    request.state.rates = rates
    if rates is None:
        return
    request.state.rate_headers = rates.headers()
    if not rates.passes:
        allowed = f"{rates.limits.requests_per_minute:,} requests a minute are allowed"
        raise RateLimitError(
            f"You send requests too fast: {allowed}. Wait {rates.seconds_to_request:.1f} s.",
            retry_after_seconds=rates.seconds_to_request,
        )


def _caller_of(services: Services, secret: str) -> Caller:
    with transaction(services.sessions) as session:
        return authenticate(session, secret)


CallerDep = Annotated[Caller, Depends(sign_in)]


async def tenant_of(caller: CallerDep) -> Tenant:
    """Return whose key it is, for routes that act for a tenant."""
    return caller.owner()


TenantDep = Annotated[Tenant, Depends(tenant_of)]


async def key_id_of(caller: CallerDep) -> str:
    """Return the id of the key that the caller signed in with."""
    return caller.key_id


KeyIdDep = Annotated[str, Depends(key_id_of)]
