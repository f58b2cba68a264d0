"""Where events are sent, and what became of each."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, Text, func, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from jobs.states import DeliveryState
from jobs.tables.base import Base, created_at, one_of


class WebhookEndpoint(Base):
    """A URL that is told of a tenant's events; see `features.webhooks`."""

    __tablename__ = "webhook_endpoint"
    __table_args__ = (Index(None, "tenant_id", "created_at", "id"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    name: Mapped[str]
    url: Mapped[str]
    event_types: Mapped[list[str]] = mapped_column(ARRAY(Text))
    secret: Mapped[str]  # as it is: requests are signed with it
    old_secret: Mapped[str | None]  # also signed with, until
    old_secret_until: Mapped[datetime | None]
    created_at: Mapped[datetime] = created_at()
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())  # its configuration or secret
    disabled_at: Mapped[datetime | None]
    disabled_reason: Mapped[str | None]
    failing_since: Mapped[datetime | None]  # the first failure after the last success


class WebhookDelivery(Base):
    """One event for one endpoint: what is to be sent, and what came of it. `id` and `data` of the event are its own.

    `tenant_id` names no row: an event may be noted while its tenant's row is locked.
    """

    __tablename__ = "webhook_delivery"
    __table_args__ = (
        Index(None, "endpoint_id", "created_at", "id"),
        Index("webhook_delivery_due_idx", "tenant_id", "due_at", postgresql_where=text("state = 'pending'")),
        Index("webhook_delivery_ended_idx", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
        CheckConstraint(one_of("state", DeliveryState), name="state"),
        {"postgresql_with": {"fillfactor": "70"}},
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    endpoint_id: Mapped[str] = mapped_column(ForeignKey("webhook_endpoint.id", ondelete="CASCADE"))
    tenant_id: Mapped[str]
    event_id: Mapped[str]
    event_type: Mapped[str]
    event_data: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(server_default=DeliveryState.PENDING.value)
    created_at: Mapped[datetime] = created_at()
    due_at: Mapped[datetime] = mapped_column(server_default=func.now())  # while it waits; claimed: when it is given up
    fence: Mapped[int] = mapped_column(server_default="0")  # of the last claim; only grows
    num_tries: Mapped[int] = mapped_column(Integer, server_default="0")  # since it was noted or replayed
    ended_at: Mapped[datetime | None]
    problem: Mapped[str | None]  # why it was given up without another try
    claimed_by: Mapped[str | None]  # whose claim the fence is


class WebhookAttempt(Base):
    """One request of a delivery, and its answer."""

    __tablename__ = "webhook_attempt"

    delivery_id: Mapped[str] = mapped_column(ForeignKey("webhook_delivery.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # the claim's fence
    started_at: Mapped[datetime]
    milliseconds: Mapped[int]
    status_code: Mapped[int | None] = mapped_column(Integer)  # null: no answer
    answer: Mapped[str | None]  # the first characters of its body
    error: Mapped[str | None]  # why there is none
