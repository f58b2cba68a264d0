"""Find the tenant behind a request's bearer key. Whose key it is, `jobs.accounts.tenants` knows."""

from __future__ import annotations

from typing import Annotated

import anyio.to_thread
from fastapi import Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.requests import HTTPConnection

from api.services import Services, ServicesDep
from jobs.accounts.limits import limits_of
from jobs.accounts.tenants import Caller, authenticate
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
        self.model = HTTPBearer(description="A tenant's key, `tm-…`.")
        self.scheme_name = "key"

    async def __call__(self, request: HTTPConnection) -> str:
        return read_bearer(request.headers.get("authorization"))


Secret = Annotated[str, Depends(BearerKey())]


async def sign_in(request: Request, services: ServicesDep, *, secret: Secret) -> Tenant:
    """Authenticate in a transaction of its own: nothing is held while an upload comes in, or a broker is asked."""
    async with services.session_slots:
        caller = await anyio.to_thread.run_sync(_caller_of, services, secret)
    request.state.tenant_id, request.state.key_id = caller.tenant.id, caller.key_id  # for the log
    await _spend_request(request, services, tenant=caller.tenant)
    return caller.tenant


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


TenantDep = Annotated[Tenant, Depends(sign_in)]


def key_id_of(request: Request, _tenant: TenantDep) -> str:
    """Return the id of the key that the caller signed in with."""
    key_id = request.state.key_id
    assert isinstance(key_id, str)
    return key_id


KeyIdDep = Annotated[str, Depends(key_id_of)]
