"""The deliveries of an endpoint: list, replay, and send a sample event."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query

from api.auth import TenantDep
from api.fields import PageQuery, StrictModel
from api.openapi import failures
from api.services import Services, ServicesDep
from api.sessions import SessionDep
from api.spending import ONE_WEBHOOK_TEST
from features.webhooks import deliveries, endpoints
from features.webhooks.deliveries import SampleRequest
from features.webhooks.http.service import sender_of
from features.webhooks.payloads import signed_event
from features.webhooks.schemas import WebhookDeliveryObject, WebhookDeliveryPage, WebhookTestResult
from jobs.database import transaction
from jobs.errors import InputError
from jobs.states import EventType

router = APIRouter(
    prefix="/v1/webhook_endpoints/{endpoint_id}", tags=["webhooks"], responses=failures(401, 403, 404, 429, 503)
)


class TryOutBody(StrictModel):
    event_type: EventType = EventType.BATCH_COMPLETED


@router.get("/deliveries", operation_id="listWebhookDeliveries")
def list_page(
    endpoint_id: str, session: SessionDep, *, tenant: TenantDep, query: Annotated[PageQuery, Query()]
) -> WebhookDeliveryPage:
    """Return an endpoint's deliveries: sent, pending and failed ones."""
    page = deliveries.list_deliveries(session, tenant.id, endpoint_id, after=query.after, limit=query.limit)
    attempts = deliveries.attempts_of(session, [delivery.id for delivery in page.data])
    data = [WebhookDeliveryObject.of(delivery, attempts[delivery.id]) for delivery in page.data]
    return WebhookDeliveryPage.of(data, has_more=page.has_more)


@router.post("/deliveries/{delivery_id}/replay", operation_id="replayWebhookDelivery", responses=failures(409))
def replay(endpoint_id: str, delivery_id: str, *, session: SessionDep, tenant: TenantDep) -> WebhookDeliveryObject:
    """Send an event again now, with the same id, in any state."""
    delivery = deliveries.replay(session, tenant.id, endpoint_id, delivery_id)
    return WebhookDeliveryObject.of(delivery, deliveries.attempts_of(session, [delivery.id])[delivery.id])


@router.post("/test", operation_id="testWebhookEndpoint", responses=failures(408, 413), dependencies=[ONE_WEBHOOK_TEST])
async def try_out(
    endpoint_id: str, *, tenant: TenantDep, services: ServicesDep, body: TryOutBody | None = None
) -> WebhookTestResult:
    """Send a sample event at once and return the endpoint's status; it is not logged and not retried."""
    event_type = EventType.BATCH_COMPLETED if body is None else body.event_type
    async with services.session_slots:
        sample = await run_sync(partial(_sample, services, tenant.id, endpoint_id))
    event = signed_event(
        sample.event_id,
        event_type.value,
        {"id": f"{event_type.partition('.')[0]}_sample"},
        event_at=sample.at,
        sent_at=sample.at,
        signing_secrets=sample.signing_secrets,
        payload_format=sample.payload_format,
    )
    answer = await sender_of(services).post(sample.url, event.body, event.headers)
    if answer.status_code is None:
        raise InputError(f"The endpoint gave no answer: {answer.error}.", code="webhook_endpoint_unreachable")
    return WebhookTestResult(
        event_type=event_type,
        status_code=answer.status_code,
        success=answer.is_success,
        webhook_endpoint_id=endpoint_id,
    )


def _sample(services: Services, tenant_id: str, endpoint_id: str) -> SampleRequest:
    """Read the values in a separate transaction, so that none is open during the request."""
    with transaction(services.sessions) as session:
        return deliveries.sample_request(session, endpoints.get_endpoint(session, tenant_id, endpoint_id))
