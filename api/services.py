"""The services that endpoints get: settings, sessions of Postgres, the object store, counters.

Created once in the app's lifespan; nothing here is global.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated, Protocol

import anyio
from fastapi import Depends, Request
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from api.admission.in_flight import InFlight
from api.admission.known_keys import KnownKeys
from api.admission.rate_limits import RateLimiter
from api.parsing.parser import BodyParser
from api.store import RequestStore
from jobs.settings import Settings
from jobs.telemetry.meters import Meters

_MADE_AT_ONCE = 2
"""Calls in `making_threads` that one tenant has in progress in one API process: half of the threads."""
_PREVIEWED_AT_ONCE = 2
"""The same for `preview_threads`."""


class FeatureService(Protocol):
    """A resource that an API process keeps open for one feature."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services of one API process. `session_slots` admits as many requests as the pool has connections.

    Without it, requests waiting for a connection could hold every thread that requests with a connection need.
    """

    settings: Settings
    engine: Engine
    sessions: sessionmaker[Session]
    known_keys: KnownKeys
    session_slots: anyio.Semaphore
    store: RequestStore
    parser: BodyParser
    meters: Meters
    rates: RateLimiter
    in_flight: InFlight
    of_features: Mapping[str, FeatureService]
    """Services of features, by their name in `Feature.services`."""

    def making_turn(self, tenant_id: str) -> AbstractAsyncContextManager[None]:
        """Wait for a tenant's turn in `making_threads`, and hold it; turns do not nest."""
        return self.in_flight.turn(tenant_id, "making", allowed=_MADE_AT_ONCE)

    def preview_turn(self, tenant_id: str) -> AbstractAsyncContextManager[None]:
        """Like `making_turn`, for `preview_threads`."""
        return self.in_flight.turn(tenant_id, "previewing", allowed=_PREVIEWED_AT_ONCE)


async def get_services(request: Request) -> Services:
    """Return the app's services. Async, as FastAPI runs other dependencies in a thread, at each request."""
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


ServicesDep = Annotated[Services, Depends(get_services)]
