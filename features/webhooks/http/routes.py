"""`/v1/webhook_endpoints`, like OpenAI's: add, read, change and delete endpoints, and rotate their secrets."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from api.auth import TenantDep
from api.fields import PageQuery, Storable, StrictModel
from api.openapi import failures
from api.services import ServicesDep
from api.sessions import SessionDep
from features.webhooks import endpoints
from features.webhooks.addresses import MAX_URL
from features.webhooks.endpoints import MAX_NAME, EndpointChange
from features.webhooks.schemas import (
    DeletedWebhookEndpoint,
    WebhookEndpointObject,
    WebhookEndpointPage,
    WebhookEndpointWithSecret,
    WebhookEventTypes,
)
from features.webhooks.settings import WebhookSettings
from features.webhooks.states import PayloadFormat
from jobs.errors import InputError
from jobs.states import EventType

router = APIRouter(prefix="/v1", tags=["webhooks"], responses=failures(401, 403, 429, 503))

Name = Annotated[Storable, Field(min_length=1, max_length=MAX_NAME)]
Url = Annotated[Storable, Field(min_length=1, max_length=MAX_URL)]
EventTypes = Annotated[list[EventType], Field(min_length=1, max_length=100)]


class CreateEndpointBody(StrictModel):
    url: Url
    """`https`, on a public address unless the operator allows others."""
    event_types: EventTypes
    name: Name
    format: PayloadFormat = PayloadFormat.EVENT
    """Ours: `slack` sends `{"text": …}` in place of the event, as incoming webhooks of chats take it."""


class ChangeEndpointBody(StrictModel):
    """The fields to change; those left out stay as they are."""

    url: Url | None = None
    event_types: EventTypes | None = None
    name: Name | None = None
    enabled: bool | None = None
    """Ours: false disables the endpoint; true enables it again."""


class RotateSecretBody(StrictModel):
    keep_old_secret_active_for_24_hours: bool = False
    """Requests are then signed with both secrets."""


@router.post("/webhook_endpoints", operation_id="createWebhookEndpoint", responses=failures(408, 413))
def create(
    body: CreateEndpointBody, *, session: SessionDep, tenant: TenantDep, services: ServicesDep
) -> WebhookEndpointWithSecret:
    """Add an endpoint. Only this response has its secret."""
    values = EndpointChange(name=body.name, url=body.url, event_types=body.event_types, payload_format=body.format)
    return WebhookEndpointWithSecret.of(
        endpoints.create_endpoint(session, tenant.id, values, services.settings.of(WebhookSettings))
    )


@router.get("/webhook_endpoints", operation_id="listWebhookEndpoints")
def list_page(session: SessionDep, *, tenant: TenantDep, query: Annotated[PageQuery, Query()]) -> WebhookEndpointPage:
    page = endpoints.list_endpoints(session, tenant.id, after=query.after, limit=query.limit)
    return WebhookEndpointPage.of(
        [WebhookEndpointObject.of(endpoint) for endpoint in page.data], has_more=page.has_more
    )


@router.get("/webhook_event_types", operation_id="listWebhookEventTypes")
def list_event_types(_tenant: TenantDep) -> WebhookEventTypes:
    """Return the types of events that an endpoint can receive."""
    return WebhookEventTypes(data=list(EventType))


@router.get("/webhook_endpoints/{endpoint_id}", operation_id="retrieveWebhookEndpoint", responses=failures(404))
def retrieve(endpoint_id: str, session: SessionDep, *, tenant: TenantDep) -> WebhookEndpointObject:
    return WebhookEndpointObject.of(endpoints.get_endpoint(session, tenant.id, endpoint_id))


@router.post(
    "/webhook_endpoints/{endpoint_id}", operation_id="updateWebhookEndpoint", responses=failures(404, 408, 413)
)
def change(
    endpoint_id: str, body: ChangeEndpointBody, *, session: SessionDep, tenant: TenantDep, services: ServicesDep
) -> WebhookEndpointObject:
    """Change an endpoint; waiting deliveries go to its new URL."""
    changes = EndpointChange(name=body.name, url=body.url, event_types=body.event_types, is_enabled=body.enabled)
    if changes == EndpointChange():
        raise InputError("There is nothing to change. Give url, event_types, name or enabled.", code="invalid_body")
    endpoint = endpoints.change_endpoint(
        session, tenant.id, endpoint_id, changes, services.settings.of(WebhookSettings)
    )
    return WebhookEndpointObject.of(endpoint)


@router.delete("/webhook_endpoints/{endpoint_id}", operation_id="deleteWebhookEndpoint", responses=failures(404))
def delete(endpoint_id: str, session: SessionDep, *, tenant: TenantDep) -> DeletedWebhookEndpoint:
    """Delete an endpoint with its log; waiting deliveries are not sent."""
    endpoints.delete_endpoint(session, tenant.id, endpoint_id)
    return DeletedWebhookEndpoint(id=endpoint_id)


@router.post(
    "/webhook_endpoints/{endpoint_id}/rotate_secret",
    operation_id="rotateWebhookSecret",
    responses=failures(404, 408, 413),
)
def rotate_secret(
    endpoint_id: str, session: SessionDep, *, tenant: TenantDep, body: RotateSecretBody | None = None
) -> WebhookEndpointWithSecret:
    """Give an endpoint a new secret, which only this response has."""
    keep_old = body is not None and body.keep_old_secret_active_for_24_hours
    return WebhookEndpointWithSecret.of(endpoints.rotate_secret(session, tenant.id, endpoint_id, keep_old=keep_old))
