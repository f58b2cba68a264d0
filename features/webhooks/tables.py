"""Tables of webhooks: endpoints, deliveries and attempts."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, Text, func, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from features.webhooks.states import DeliveryState, PayloadFormat
from jobs.tables.base import Base, created_at, one_of


class WebhookEndpoint(Base):
    """A URL that receives a tenant's events; see `features.webhooks`."""

    __tablename__ = "webhook_endpoint"
    __table_args__ = (
        Index(None, "tenant_id", "created_at", "id"),
        CheckConstraint(one_of("payload_format", PayloadFormat), name="payload_format"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    name: Mapped[str]
    url: Mapped[str]
    event_types: Mapped[list[str]] = mapped_column(ARRAY(Text))
    secret: Mapped[str]  # in plain text, to sign requests
    old_secret: Mapped[str | None]  # requests are also signed with it until `old_secret_until`
    old_secret_until: Mapped[datetime | None]
    created_at: Mapped[datetime] = created_at()
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())  # of its configuration or secret
    disabled_at: Mapped[datetime | None]
    disabled_reason: Mapped[str | None]
    failing_since: Mapped[datetime | None]  # the first failure after the last success
    payload_format: Mapped[str] = mapped_column(server_default=PayloadFormat.EVENT.value)


class WebhookDelivery(Base):
    """One event for one endpoint, with the state of its delivery. The event's id and data are copied.

    `tenant_id` is not a foreign key, as an event may be recorded while its tenant's row is locked.
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
    due_at: Mapped[datetime] = mapped_column(server_default=func.now())  # while claimed: when the claim expires
    fence: Mapped[int] = mapped_column(server_default="0")  # of the last claim; only increases
    num_tries: Mapped[int] = mapped_column(Integer, server_default="0")  # since it was recorded or replayed
    ended_at: Mapped[datetime | None]
    problem: Mapped[str | None]  # why it failed without another attempt
    claimed_by: Mapped[str | None]  # owner of the claim with this fence


class WebhookAttempt(Base):
    """One request of a delivery, and its answer."""

    __tablename__ = "webhook_attempt"

    delivery_id: Mapped[str] = mapped_column(ForeignKey("webhook_delivery.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # the claim's fence
    started_at: Mapped[datetime]
    milliseconds: Mapped[int]
    status_code: Mapped[int | None] = mapped_column(Integer)  # null: no answer
    answer: Mapped[str | None]  # the first characters of its body
    error: Mapped[str | None]  # why there is no answer
