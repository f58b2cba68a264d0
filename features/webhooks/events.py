"""Events: recorded in the transaction that makes them true, once for each endpoint subscribed to their type.

`features.webhooks.deliveries` sends them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, literal_column, select, text
from sqlalchemy.orm import Session

from features.webhooks.states import DeliveryState
from features.webhooks.tables import WebhookDelivery
from jobs.ids import new_id
from jobs.states import EventType

log = logging.getLogger(__name__)

MAX_PENDING = 10_000
"""Waiting deliveries of a tenant. Further ones are not sent, but logged at their endpoint for a replay."""
TOO_MANY = f"not sent: {MAX_PENDING:,} deliveries of yours were waiting"


def emit(session: Session, tenant_id: str, event_type: EventType, data: Mapping[str, Any]) -> str | None:
    """Record an event in the caller's transaction: it is sent if and only if that commits.

    `data` has the ids of the event's objects: a few hundred bytes. Return the event's id, None if no endpoint of the
    tenant is subscribed to its type. Endpoints cannot be deleted until the transaction ends.
    """
    endpoint_ids = session.scalars(_WANTED, {"tenant_id": tenant_id, "type": event_type.value}).all()
    if not endpoint_ids:
        return None
    event_id = new_id("evt")
    has_room = num_pending(session, tenant_id) < MAX_PENDING
    if not has_room:
        log.warning("webhook event left out tenant_id=%s type=%s", tenant_id, event_type)
    ended = {} if has_room else {"state": DeliveryState.FAILED.value, "ended_at": func.now(), "problem": TOO_MANY}
    session.add_all(
        WebhookDelivery(
            id=new_id("whdel"),
            endpoint_id=endpoint_id,
            tenant_id=tenant_id,
            event_id=event_id,
            event_type=event_type.value,
            event_data=dict(data),
            **ended,
        )
        for endpoint_id in endpoint_ids
    )
    session.flush()
    return event_id


def num_pending(session: Session, tenant_id: str) -> int:
    """Return the number of a tenant's waiting deliveries, up to MAX_PENDING."""
    is_pending = WebhookDelivery.state == literal_column(f"'{DeliveryState.PENDING}'")  # a literal, to use the index
    pending = select(WebhookDelivery.due_at).where(WebhookDelivery.tenant_id == tenant_id, is_pending)
    return session.scalar(select(func.count()).select_from(pending.limit(MAX_PENDING).subquery())) or 0


# KEY SHARE: a delivery references its endpoint, which must not be deleted meanwhile, but may be changed.
_WANTED = text("""
    SELECT id FROM webhook_endpoint
    WHERE tenant_id = :tenant_id AND disabled_at IS NULL AND :type = ANY(event_types)
    ORDER BY id FOR KEY SHARE
""")
