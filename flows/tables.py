"""Tables of flows: the row that a control worker claims, and its nodes, each at most one batch.

Each kind of flow adds a table of its own, whose rows have the same id (SQLAlchemy's joined table inheritance).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, UniqueConstraint, func, text
from sqlalchemy.orm import Mapped, mapped_column

from flows.states import CLAIMABLE_STATES, FlowState
from jobs.tables.base import Base, created_at, one_of


class Flow(Base):
    """Batches after batches: whose, how it ended, and its claim (`jobs.claims`)."""

    __tablename__ = "flow"
    __table_args__: tuple[Any, ...] = (
        UniqueConstraint("tenant_id", "recipe", "idempotency_key"),
        Index(None, "tenant_id", "recipe", "created_at", "id"),
        Index("flow_open_idx", "recipe", "tenant_id", postgresql_where=text("ended_at IS NULL")),
        Index("flow_ended_idx", "recipe", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
        Index(None, "for_batch_id", postgresql_where=text("for_batch_id IS NOT NULL")),
        Index("flow_lane_idx", "lane", unique=True, postgresql_where=text(one_of("state", CLAIMABLE_STATES))),
        CheckConstraint(one_of("state", FlowState), name="state"),
        {"postgresql_with": {"fillfactor": "70"}},
    )
    __mapper_args__ = {"polymorphic_on": "recipe"}  # noqa: RUF012 - SQLAlchemy's own protocol

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    recipe: Mapped[str]
    state: Mapped[str]  # one of its kind's states
    reason: Mapped[str | None]  # for its end, or its wait
    lane: Mapped[str | None]  # of flows with the same lane, one at a time is under way
    api_key_id: Mapped[str | None]  # whose budgets its batches are charged to
    idempotency_key: Mapped[str | None]
    fingerprint: Mapped[str | None]  # of the create call; null: it cannot be repeated
    values: Mapped[dict[str, Any] | None]  # of a kind without a table of its own: what was asked, and the outputs
    created_at: Mapped[datetime] = created_at()
    ended_at: Mapped[datetime | None]
    claim_fence: Mapped[int] = mapped_column(server_default="0")  # only grows
    claimed_by: Mapped[str | None]
    claimed_until: Mapped[datetime | None]
    look_at: Mapped[datetime | None]  # not due before
    num_tries: Mapped[int] = mapped_column(Integer, server_default="0")  # failed tries of its current node
    for_batch_id: Mapped[str | None] = mapped_column(ForeignKey("batch.id"))  # the batch that its own ones serve


class FlowNode(Base):
    """A node that has begun; each column is written once, in the transaction that did it."""

    __tablename__ = "flow_node"
    __table_args__: tuple[Any, ...] = (Index(None, "batch_id", postgresql_where=text("batch_id IS NOT NULL")),)
    __mapper_args__ = {"polymorphic_on": "recipe"}  # noqa: RUF012 - SQLAlchemy's own protocol

    flow_id: Mapped[str] = mapped_column(ForeignKey("flow.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    recipe: Mapped[str]  # of its flow
    name: Mapped[str]
    batch_id: Mapped[str | None] = mapped_column(ForeignKey("batch.id"))  # null: there was nothing to do
    num_lines: Mapped[int]
    begun_at: Mapped[datetime] = mapped_column(server_default=func.now())
    done_at: Mapped[datetime | None]
    # Number of its batch's results that the flow has acted on; null: it acts on all together, once the batch has ended.
    num_seen: Mapped[int | None]


class RequestColumns:
    """Columns of a kind whose flows process a collection: what their create call asked for."""

    collection_id: Mapped[str] = mapped_column(ForeignKey("collection.id"))
    priority: Mapped[str]
    completion_window: Mapped[str]
    request_metadata: Mapped[dict[str, Any] | None] = mapped_column("metadata")
    expires_at: Mapped[datetime]  # its batches expire then
