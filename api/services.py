"""What the endpoints are handed: settings, the sessions of Postgres, the object store and the counters.

Made once in the app's lifespan; nothing here is global.
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
"""What one tenant has under way at once in one API process of all that uses `making_threads`: half of them."""
_PREVIEWED_AT_ONCE = 2
"""The same of `preview_threads`."""


class FeatureService(Protocol):
    """What an API process keeps open for one feature."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """`session_slots` admits as many requests as the pool has connections.

    Without it the requests that wait for a connection could hold every thread that the requests owning one need.
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
    """What the endpoints of one feature share, by its name in `Feature.services`."""

    def making_turn(self, tenant_id: str) -> AbstractAsyncContextManager[None]:
        """Wait for a tenant's turn in `making_threads`, whatever it is for, and hold it; turns do not nest."""
        return self.in_flight.turn(tenant_id, "making", allowed=_MADE_AT_ONCE)

    def preview_turn(self, tenant_id: str) -> AbstractAsyncContextManager[None]:
        """As `making_turn`, in `preview_threads`."""
        return self.in_flight.turn(tenant_id, "previewing", allowed=_PREVIEWED_AT_ONCE)


async def get_services(request: Request) -> Services:
    """Return what the app was started with. Async, as FastAPI calls all others in a thread, for each request."""
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


ServicesDep = Annotated[Services, Depends(get_services)]
