"""Columns shared by extractions, indexes and runs, which control workers advance."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Integer, func
from sqlalchemy.orm import Mapped, mapped_column

from jobs.states import COURSE_UNDER_WAY
from jobs.tables.base import Base, created_at


class GraphRow(Base):
    """A graph of batches: its tenant, its end, and its claim (`jobs.claims`)."""

    __abstract__ = True

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    state: Mapped[str]  # one of its kind's states
    reason: Mapped[str | None]  # for its end, or its wait
    created_at: Mapped[datetime] = created_at()
    ended_at: Mapped[datetime | None]
    claim_fence: Mapped[int] = mapped_column(server_default="0")  # only grows
    claimed_by: Mapped[str | None]
    claimed_until: Mapped[datetime | None]
    look_at: Mapped[datetime | None]  # not due before
    num_tries: Mapped[int] = mapped_column(Integer, server_default="0")  # failed tries of its current step


class CourseRow(GraphRow):
    """Work on all documents of a collection: who requested it, how, and how it ended."""

    __abstract__ = True

    collection_id: Mapped[str] = mapped_column(ForeignKey("collection.id"))
    priority: Mapped[str]
    completion_window: Mapped[str]
    request_metadata: Mapped[dict[str, Any] | None] = mapped_column("metadata")
    api_key_id: Mapped[str | None]  # whose budgets its batches are charged to
    idempotency_key: Mapped[str | None]
    fingerprint: Mapped[str]  # of the create call
    state: Mapped[str] = mapped_column(server_default=COURSE_UNDER_WAY)
    expires_at: Mapped[datetime]  # its batches expire then


class StageColumns:
    """A stage that has begun; each column is written once, in the transaction that did it."""

    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    batch_id: Mapped[str | None] = mapped_column(ForeignKey("batch.id"))  # null: there was nothing to do
    num_lines: Mapped[int]
    begun_at: Mapped[datetime] = mapped_column(server_default=func.now())
    done_at: Mapped[datetime | None]
