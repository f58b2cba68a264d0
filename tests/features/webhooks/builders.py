"""Initial endpoints of tests of webhooks."""

from __future__ import annotations

from sqlalchemy.orm import Session

from features.webhooks.endpoints import EndpointChange, create_endpoint
from features.webhooks.tables import WebhookEndpoint
from jobs.states import EventType
from tests.all_settings import Settings

URL = "https://example.com/hook"


def add_endpoint(
    session: Session, tenant_id: str, *event_types: EventType, url: str = URL, networks: str = ""
) -> WebhookEndpoint:
    """Add an endpoint, by default for all types, and commit."""
    wanted = EndpointChange(name="mine", url=url, event_types=event_types or tuple(EventType))
    endpoint = create_endpoint(session, tenant_id, wanted, Settings(webhook_networks=networks))
    session.commit()
    return endpoint
