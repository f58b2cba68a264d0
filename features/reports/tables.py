"""Tables of reports: when those of a pipeline are due and who gets them, and those that were."""

from __future__ import annotations

from datetime import date, datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, Text, UniqueConstraint, func, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from features.reports.states import MailState
from jobs.tables.base import Base, created_at, one_of


class ReportSubscription(Base):
    """When the reports of a pipeline are due, and who gets them by mail."""

    __tablename__ = "report_subscription"
    __table_args__ = (Index(None, "next_at"), Index(None, "tenant_id"))

    pipeline_id: Mapped[str] = mapped_column(ForeignKey("pipeline.id"), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    at_minutes: Mapped[int] = mapped_column(Integer)  # after midnight, in the time zone of the pipeline's days
    mail_to: Mapped[list[str]] = mapped_column(ARRAY(Text))
    include_rows: Mapped[bool] = mapped_column(server_default="false")  # whether mails hold texts of failed rows
    next_at: Mapped[datetime]
    created_at: Mapped[datetime] = created_at()
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())


class DueReport(Base):
    """A report that was due, once for each pipeline and day, and the state of its mail.

    `tenant_id` is not a foreign key, as a tenant that ends takes its rows with it.
    """

    __tablename__ = "due_report"
    __table_args__ = (
        UniqueConstraint("pipeline_id", "day"),
        Index("due_report_due_idx", "due_at", postgresql_where=text("state = 'pending'")),
        Index(None, "tenant_id"),
        CheckConstraint(one_of("state", MailState), name="state"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    pipeline_id: Mapped[str] = mapped_column(ForeignKey("pipeline.id"))
    tenant_id: Mapped[str]
    day: Mapped[date]
    mail_to: Mapped[list[str]] = mapped_column(ARRAY(Text))
    include_rows: Mapped[bool]
    state: Mapped[str]
    created_at: Mapped[datetime] = created_at()
    due_at: Mapped[datetime] = mapped_column(server_default=func.now())  # while claimed: when the claim expires
    fence: Mapped[int] = mapped_column(server_default="0")  # of the last claim; only increases
    claimed_by: Mapped[str | None]  # owner of the claim with this fence
    num_tries: Mapped[int] = mapped_column(Integer, server_default="0")
    ended_at: Mapped[datetime | None]
    problem: Mapped[str | None]  # why the last try failed, or whom the server refused
