"""A tenant's endpoints: add, change, delete, rotate secrets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from features.webhooks import signing
from features.webhooks.addresses import check_url
from features.webhooks.settings import WebhookSettings
from features.webhooks.states import DeliveryState, PayloadFormat
from features.webhooks.tables import WebhookDelivery, WebhookEndpoint
from jobs.errors import InputError, LimitError, NotFoundError
from jobs.ids import new_id
from jobs.pagination import Page, read_page
from jobs.states import EventType
from jobs.tables import Tenant

MAX_ENDPOINTS = 20
"""Endpoints per tenant."""
MAX_NAME = 200
OLD_SECRET_KEPT = timedelta(hours=24)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointChange:
    """The new values of an endpoint; None keeps a value."""

    name: str | None = None
    url: str | None = None
    event_types: Sequence[EventType] | None = None
    is_enabled: bool | None = None
    payload_format: PayloadFormat | None = None
    """Set by a new endpoint only; None: an event."""


def create_endpoint(
    session: Session, tenant_id: str, values: EndpointChange, settings: WebhookSettings
) -> WebhookEndpoint:
    """Add an endpoint with a new secret. Raise InputError, or LimitError if there are too many."""
    assert values.url is not None, "a new endpoint has all but is_enabled"
    assert values.event_types is not None
    assert values.name is not None
    check_url(values.url, settings.allowed_networks)
    _check_room(session, tenant_id)
    endpoint = WebhookEndpoint(
        id=new_id("whep"),
        tenant_id=tenant_id,
        name=values.name,
        url=values.url,
        event_types=_values(values.event_types),
        secret=signing.new_secret(),
        payload_format=(values.payload_format or PayloadFormat.EVENT).value,
    )
    session.add(endpoint)
    session.flush()
    session.refresh(endpoint)
    return endpoint


def get_endpoint(session: Session, tenant_id: str, endpoint_id: str) -> WebhookEndpoint:
    """Return an endpoint of this tenant. Raise NotFoundError, also for another tenant's."""
    is_there = (WebhookEndpoint.id == endpoint_id) & (WebhookEndpoint.tenant_id == tenant_id)
    endpoint = session.scalar(select(WebhookEndpoint).where(is_there))
    if endpoint is None:
        raise NotFoundError(f"No webhook endpoint found with id {endpoint_id!r}.", param="webhook_endpoint_id")
    return endpoint


def list_endpoints(
    session: Session, tenant_id: str, *, after: str | None = None, limit: int = 20
) -> Page[WebhookEndpoint]:
    """Return a page of a tenant's endpoints, newest first. Raise InputError on an unknown `after`."""
    query = select(WebhookEndpoint).where(WebhookEndpoint.tenant_id == tenant_id)
    return read_page(session, query, table=WebhookEndpoint, tenant_id=tenant_id, after=after, limit=limit)


def change_endpoint(
    session: Session, tenant_id: str, endpoint_id: str, change: EndpointChange, settings: WebhookSettings
) -> WebhookEndpoint:
    """Change an endpoint; waiting deliveries go to its new URL. Raise InputError or NotFoundError."""
    if change.url is not None:
        check_url(change.url, settings.allowed_networks)
    endpoint = _lock(session, tenant_id, endpoint_id)
    before = _configuration(endpoint)
    if change.name is not None:
        endpoint.name = change.name
    if change.url is not None and change.url != endpoint.url:
        endpoint.url = change.url
        endpoint.failing_since = None  # the failures were those of the old URL
    if change.event_types is not None:
        endpoint.event_types = _values(change.event_types)
    if change.is_enabled is True:
        endpoint.disabled_at = endpoint.disabled_reason = endpoint.failing_since = None
    session.flush()
    if change.is_enabled is False and endpoint.disabled_at is None:
        disable(session, endpoint.id, reason="disabled by its owner")
        session.refresh(endpoint)
    if _configuration(endpoint) != before:
        _note_change(session, endpoint)
    return endpoint


def rotate_secret(session: Session, tenant_id: str, endpoint_id: str, *, keep_old: bool) -> WebhookEndpoint:
    """Give an endpoint a new secret; with `keep_old`, requests are also signed with the old one for a day."""
    endpoint = _lock(session, tenant_id, endpoint_id)
    kept_until = session.scalar(select(func.now() + OLD_SECRET_KEPT)) if keep_old else None
    endpoint.old_secret, endpoint.old_secret_until = (endpoint.secret if keep_old else None), kept_until
    endpoint.secret = signing.new_secret()
    session.flush()
    _note_change(session, endpoint)
    return endpoint


def delete_endpoint(session: Session, tenant_id: str, endpoint_id: str) -> None:
    """Delete an endpoint with its log and its waiting deliveries. Raise NotFoundError."""
    endpoint = get_endpoint(session, tenant_id, endpoint_id)
    session.execute(delete(WebhookEndpoint).where(WebhookEndpoint.id == endpoint.id))


def delete_endpoints_of(session: Session, tenant_id: str) -> None:
    """Delete all endpoints of a deleted tenant."""
    session.execute(delete(WebhookEndpoint).where(WebhookEndpoint.tenant_id == tenant_id))


def disable(session: Session, endpoint_id: str, *, reason: str) -> None:
    """Disable an endpoint until its owner enables it again; its waiting deliveries fail."""
    values = {"disabled_at": func.now(), "disabled_reason": reason}
    session.execute(update(WebhookEndpoint).where(WebhookEndpoint.id == endpoint_id).values(values))
    is_pending = (WebhookDelivery.endpoint_id == endpoint_id) & (WebhookDelivery.state == DeliveryState.PENDING.value)
    ended = {"state": DeliveryState.FAILED.value, "ended_at": func.now(), "problem": f"not sent: {reason}"}
    session.execute(update(WebhookDelivery).where(is_pending).values(ended))


def _lock(session: Session, tenant_id: str, endpoint_id: str) -> WebhookEndpoint:
    endpoint = get_endpoint(session, tenant_id, endpoint_id)
    session.refresh(endpoint, with_for_update={"key_share": True})
    return endpoint


def _check_room(session: Session, tenant_id: str) -> None:
    session.execute(select(Tenant.id).where(Tenant.id == tenant_id).with_for_update(key_share=True))  # one at a time
    num = session.scalar(
        select(func.count()).select_from(WebhookEndpoint).where(WebhookEndpoint.tenant_id == tenant_id)
    )
    if (num or 0) >= MAX_ENDPOINTS:
        raise LimitError(
            f"You have {num} webhook endpoints and {MAX_ENDPOINTS} are allowed. Delete one, or add event types to an "
            "existing one.",
            code="webhook_endpoints_exceeded",
        )


def _configuration(endpoint: WebhookEndpoint) -> tuple[object, ...]:
    return (endpoint.name, endpoint.url, list(endpoint.event_types), endpoint.disabled_at)


def _note_change(session: Session, endpoint: WebhookEndpoint) -> None:
    now = session.scalar(select(func.now()))
    assert now is not None
    endpoint.updated_at = now
    session.flush()


def _values(event_types: Sequence[EventType]) -> list[str]:
    """Return the stored values: each type once, in the order of the enum."""
    if not event_types:
        raise InputError(
            f"event_types is empty. Give one or more of {', '.join(EventType)}.",
            param="event_types",
            code="invalid_value",
        )
    return [event_type.value for event_type in EventType if event_type in event_types]
