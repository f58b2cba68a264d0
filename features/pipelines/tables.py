"""Tables of pipelines: definitions, schedules, runs, and the stores that they read and write."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from features.pipelines.states import CatchUp, Overlap, RunKind
from flows.tables import Flow, FlowNode
from jobs.tables.base import Base, created_at, one_of


class Pipeline(Base):
    """A pipeline: the steps of its runs, see `features.pipelines`. A run keeps the definition that it began with."""

    __tablename__ = "pipeline"
    __table_args__ = (
        Index("pipeline_name_idx", "tenant_id", "name", unique=True, postgresql_where=text("deleted_at IS NULL")),
        Index(None, "tenant_id", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    name: Mapped[str]
    definition: Mapped[dict[str, Any]] = mapped_column(JSON)  # not JSONB, which reorders the properties of schemas
    version: Mapped[int] = mapped_column(server_default="1")  # of the definition; only increases
    api_key_id: Mapped[str | None]  # the key that set the definition: its budgets are charged
    created_at: Mapped[datetime] = created_at()
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())
    deleted_at: Mapped[datetime | None]


class Schedule(Base):
    """When a pipeline runs. Advancing `next_at` and inserting the runs up to it is one transaction."""

    __tablename__ = "schedule"
    __table_args__ = (
        Index("schedule_name_idx", "tenant_id", "name", unique=True, postgresql_where=text("deleted_at IS NULL")),
        Index(None, "tenant_id", "created_at", "id"),
        Index(
            "schedule_due_idx",
            "due_at",
            postgresql_where=text("due_at IS NOT NULL AND paused_at IS NULL AND deleted_at IS NULL"),
        ),
        CheckConstraint(one_of("overlap", Overlap), name="overlap"),
        CheckConstraint(one_of("catch_up", CatchUp), name="catch_up"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    pipeline_id: Mapped[str] = mapped_column(ForeignKey("pipeline.id"), index=True)
    name: Mapped[str]
    cron: Mapped[str]
    time_zone: Mapped[str]
    starts_at: Mapped[datetime | None]
    ends_at: Mapped[datetime | None]
    jitter_seconds: Mapped[int] = mapped_column(Integer, server_default="0")
    overlap: Mapped[str] = mapped_column(server_default=Overlap.SKIP.value)
    catch_up: Mapped[str] = mapped_column(server_default=CatchUp.LATEST.value)
    catch_up_seconds: Mapped[int]
    max_failures: Mapped[int | None] = mapped_column(Integer)  # failures in a row that pause it; null: unlimited
    next_at: Mapped[datetime | None]  # `scheduled_for` of its next run; null if there is none any more
    due_at: Mapped[datetime | None]  # next_at and its jitter
    paused_at: Mapped[datetime | None]
    pause_reason: Mapped[str | None]  # null if a user paused it
    num_failures: Mapped[int] = mapped_column(Integer, server_default="0")  # in a row
    num_skipped: Mapped[int] = mapped_column(Integer, server_default="0")  # in a row
    created_at: Mapped[datetime] = created_at()
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())
    deleted_at: Mapped[datetime | None]
    late_after_seconds: Mapped[int | None] = mapped_column(Integer)  # after `scheduled_for`; null: runs are never late


class Run(Flow):
    """One run of a pipeline; its lane is the pipeline, or files new since the last success would be taken twice."""

    __tablename__ = "run"
    __table_args__ = (
        UniqueConstraint("schedule_id", "scheduled_for", "kind", name="run_once_key"),
        Index(None, "pipeline_id", "id"),
        Index(None, "pipeline_id", "scheduled_for"),
        CheckConstraint(one_of("kind", RunKind), name="kind"),
        {"postgresql_with": {"fillfactor": "70"}},
    )
    __mapper_args__ = {"polymorphic_identity": "run"}  # noqa: RUF012 - SQLAlchemy's own protocol

    id: Mapped[str] = mapped_column(ForeignKey("flow.id", ondelete="CASCADE"), primary_key=True)
    pipeline_id: Mapped[str] = mapped_column(ForeignKey("pipeline.id"))
    schedule_id: Mapped[str | None] = mapped_column(ForeignKey("schedule.id"))
    kind: Mapped[str]
    scheduled_for: Mapped[datetime]
    interval_start: Mapped[datetime]
    interval_end: Mapped[datetime]
    num_missed: Mapped[int] = mapped_column(Integer, server_default="1")  # runs that a skipped one represents
    # The pipeline's definition when it began; null if it has not begun.
    definition: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    started_at: Mapped[datetime | None]
    late_at: Mapped[datetime | None]  # when it was reported as late
    error_code: Mapped[str | None]  # of its error, if that has one


class RunStep(FlowNode):
    """A step of a run that has begun, with its rows; each column is written once, by the transaction of its effect."""

    __tablename__ = "run_step"
    __table_args__ = (
        ForeignKeyConstraint(["flow_id", "number"], ["flow_node.flow_id", "flow_node.number"], ondelete="CASCADE"),
    )
    __mapper_args__ = {"polymorphic_identity": "run"}  # noqa: RUF012 - SQLAlchemy's own protocol

    flow_id: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    rows_file_id: Mapped[str | None] = mapped_column(ForeignKey("file.id"))  # its rows, as read
    num_rows: Mapped[int] = mapped_column(server_default="0")
    num_failed: Mapped[int] = mapped_column(server_default="0")  # rows without an answer
    published: Mapped[list[dict[str, Any]] | None]  # the files of its output, once published
    row_schema: Mapped[bytes | None]  # Arrow schema of its rows, if a Parquet output needs their types
    cpu_seconds: Mapped[float] = mapped_column(server_default="0")  # for rendering its prompt
    # Of its answers, in the form of `step_work.answer_statistics`, once it is done; null: by an earlier release.
    statistics: Mapped[dict[str, Any] | None]
    # Its rows without an answer, once it is done; null: there are none, or an earlier release did it.
    failed_rows_file_id: Mapped[str | None] = mapped_column(ForeignKey("file.id"))


class DatasetFile(Base):
    """A version of a file of a store that a run took; files without a row here are new since the last success."""

    __tablename__ = "dataset_file"
    __table_args__ = (Index(None, "run_id"),)

    pipeline_id: Mapped[str] = mapped_column(ForeignKey("pipeline.id"), primary_key=True)
    step: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[str] = mapped_column(primary_key=True)
    size_bytes: Mapped[int]
    run_id: Mapped[str | None] = mapped_column(ForeignKey("run.id"))  # the last run that took it; null if deleted
    done_at: Mapped[datetime | None]  # when a run that took it succeeded


class Store(Base):
    """A folder or bucket that an operator has registered for a tenant; its pipelines can reach no other."""

    __tablename__ = "store"
    __table_args__ = (
        Index("store_name_idx", "tenant_id", "name", unique=True, postgresql_where=text("deleted_at IS NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    name: Mapped[str]
    url: Mapped[str]
    options: Mapped[dict[str, Any]]  # they include credentials and are never shown
    is_writable: Mapped[bool]
    created_at: Mapped[datetime] = created_at()
    deleted_at: Mapped[datetime | None]
