"""Find the tenant behind a request's bearer key. Whose key it is, `jobs.accounts.tenants` knows."""

from __future__ import annotations

from typing import Annotated

import anyio.to_thread
from fastapi import Depends, Header

from api.services import Services, ServicesDep, SessionDep
from jobs.accounts.tenants import authenticate
from jobs.database import transaction
from jobs.errors import AuthenticationError
from jobs.tables import Tenant

AuthorizationHeader = Annotated[str | None, Header()]


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


def current_tenant(session: SessionDep, authorization: AuthorizationHeader = None) -> Tenant:
    """Authenticate inside the request's own transaction."""
    return authenticate(session, read_bearer(authorization))


TenantDep = Annotated[Tenant, Depends(current_tenant)]


async def detached_tenant_id(services: ServicesDep, authorization: AuthorizationHeader = None) -> str:
    """Authenticate in a transaction of its own, so that a slow upload holds no connection."""
    secret = read_bearer(authorization)
    async with services.session_slots:
        return await anyio.to_thread.run_sync(_tenant_id_of, services, secret)


def _tenant_id_of(services: Services, secret: str) -> str:
    with transaction(services.sessions) as session:
        return authenticate(session, secret).id


DetachedTenantId = Annotated[str, Depends(detached_tenant_id)]
