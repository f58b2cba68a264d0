"""Charges of a request beyond the request itself: tokens of its tenant's rate, and limits on concurrent calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from api.admission.rate_limits import Rates, Wanted
from api.auth import TenantDep
from api.services import ServicesDep
from jobs.accounts.limits import limits_of
from jobs.errors import RateLimitError

AT_ONCE = 2
"""Sums, estimates and tests of webhooks that one tenant may have in progress in one API process: each may take long."""

STREAMS = 32
"""Event streams that one tenant may read at once in one API process."""


@dataclass(slots=True)
class Spending:
    """The estimated tokens that the endpoint accepts, with the tenant's rates at the time of the request."""

    rates: Rates
    tokens: int = 0

    def spend(self, tokens: int) -> None:
        """Raise RateLimitError while the tenant is in debt."""
        if self.rates.tokens <= 0:
            seconds = self.rates.seconds_to_tokens
            raise RateLimitError(
                f"You submit tokens too fast: {self.rates.limits.tokens_per_minute:,} tokens a minute are allowed, "
                f"and more were submitted. Wait {seconds:.1f} s.",
                retry_after_seconds=seconds,
            )
        self.tokens += tokens


async def spend_tokens(request: Request, services: ServicesDep, *, tenant: TenantDep) -> AsyncIterator[Spending]:
    """Charge the accepted tokens after the commit."""
    spending = Spending(request.state.rates)
    yield spending
    if spending.tokens:
        await services.rates.spend(tenant.id, limits_of(tenant, services.settings), Wanted(tokens=spending.tokens))


# An endpoint's parameters must have it before the session, so that it ends after the commit.
SpendingDep = Annotated[Spending, Depends(spend_tokens, scope="function")]


async def hold_upload(services: ServicesDep, tenant: TenantDep) -> AsyncIterator[None]:
    with services.in_flight.hold(tenant.id, "uploads", allowed=limits_of(tenant, services.settings).uploads):
        yield


async def wait_for_several(services: ServicesDep, tenant: TenantDep) -> AsyncIterator[None]:
    """Wait for a turn: a form of many files holds a thread of the uploads for its whole time."""
    async with services.in_flight.turn(tenant.id, "forms of several files", allowed=AT_ONCE):
        yield


async def hold_download(services: ServicesDep, tenant: TenantDep) -> AsyncIterator[None]:
    """Hold a download until the answer is sent or its reader disconnects."""
    with services.in_flight.hold(tenant.id, "downloads", allowed=limits_of(tenant, services.settings).downloads):
        yield


async def hold_sum(services: ServicesDep, tenant: TenantDep) -> AsyncIterator[None]:
    with services.in_flight.hold(tenant.id, "sums", allowed=AT_ONCE):
        yield


async def hold_estimate(services: ServicesDep, tenant: TenantDep) -> AsyncIterator[None]:
    with services.in_flight.hold(tenant.id, "estimates", allowed=AT_ONCE):
        yield


async def hold_preview(services: ServicesDep, tenant: TenantDep) -> AsyncIterator[None]:
    with services.in_flight.hold(tenant.id, "previews", allowed=1):
        yield


async def hold_listing(services: ServicesDep, tenant: TenantDep) -> AsyncIterator[None]:
    with services.in_flight.hold(tenant.id, "listings", allowed=AT_ONCE):
        yield


async def wait_for_item_change(services: ServicesDep, tenant: TenantDep) -> AsyncIterator[None]:
    """Wait for a turn: reviewers of a tenant change items concurrently, and none is refused."""
    async with services.in_flight.turn(tenant.id, "item changes", allowed=AT_ONCE):
        yield


async def hold_webhook_test(services: ServicesDep, tenant: TenantDep) -> AsyncIterator[None]:
    with services.in_flight.hold(tenant.id, "webhook_tests", allowed=AT_ONCE):
        yield


async def hold_stream(services: ServicesDep, tenant: TenantDep) -> AsyncIterator[None]:
    with services.in_flight.hold(tenant.id, "streams", allowed=STREAMS):
        yield


ONE_UPLOAD = Depends(hold_upload)
ONE_OF_SEVERAL = Depends(wait_for_several)
ONE_DOWNLOAD = Depends(hold_download)
ONE_STREAM = Depends(hold_stream)
# Held until the answer is made. They precede the session, as an endpoint's `dependencies` are resolved first.
ONE_SUM = Depends(hold_sum, scope="function")
ONE_ESTIMATE = Depends(hold_estimate, scope="function")
ONE_PREVIEW = Depends(hold_preview, scope="function")
ONE_LISTING = Depends(hold_listing, scope="function")
ITEM_CHANGE_TURN = Depends(wait_for_item_change, scope="function")
ONE_WEBHOOK_TEST = Depends(hold_webhook_test, scope="function")
