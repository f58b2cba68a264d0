"""Chores, the admin log, deletions, and state of the database itself."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Identity, SmallInteger
from sqlalchemy.orm import Mapped, mapped_column

from jobs.tables.base import Base, created_at


class AdminEntry(Base):
    """A change by an operator; append-only: triggers refuse everything but inserts. `jobs.admin_log`."""

    __tablename__ = "admin_log"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    at: Mapped[datetime] = created_at()
    actor: Mapped[str]  # `user:` and the operating system's user name, or `key:` and a key's id
    action: Mapped[str]
    subject: Mapped[str]  # id or name of the changed thing
    tenant_id: Mapped[str | None]  # owner of the subject; null: none
    before: Mapped[dict[str, Any] | None]  # the changed values; null: it did not exist
    after: Mapped[dict[str, Any] | None]  # null: it was deleted


class Chore(Base):
    """Periodic work done by one process for all; see `jobs.chores`."""

    __tablename__ = "chore"

    name: Mapped[str] = mapped_column(primary_key=True)
    due_at: Mapped[datetime]


class Deletion(Base):
    """A deletion: what, when and by whom; append-only, and it outlives its subject."""

    __tablename__ = "deletion"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    kind: Mapped[str]
    subject_id: Mapped[str] = mapped_column(index=True)
    tenant_id: Mapped[str | None]  # null: of several tenants
    deleted_by: Mapped[str]  # id of an API key, or one of `jobs.deletions`
    deleted_at: Mapped[datetime] = created_at()


class ScheduleWatch(Base):
    """Since when dispatchers have polled schedules without a pause: see `features.pipelines.scheduling.watch`."""

    __tablename__ = "schedule_watch"
    __table_args__ = (CheckConstraint("id = 1", name="id"),)

    id: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False, server_default="1")
    since: Mapped[datetime]
    seen_at: Mapped[datetime]


class SchemaFloor(Base):
    """The oldest revision that code on this schema must know, in one row, raised by `migrations.contracts`."""

    __tablename__ = "schema_floor"
    __table_args__ = (CheckConstraint("id = 1", name="id"),)

    id: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False, server_default="1")
    revision: Mapped[str]


class StoreMarker(Base):
    """The id of this database that its object store carries, in one row; see `jobs.storage.store_marker`."""

    __tablename__ = "store_marker"
    __table_args__ = (CheckConstraint("id = 1", name="id"),)

    id: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False, server_default="1")
    marker: Mapped[str]
    written_at: Mapped[datetime | None]  # to the store; null: not yet, or unknown


class Uptime(Base):
    """Since when the database has answered without a pause, in one row; see `jobs.uptime`."""

    __tablename__ = "uptime"
    __table_args__ = (CheckConstraint("id = 1", name="id"),)

    id: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False, server_default="1")
    since: Mapped[datetime]
    seen_at: Mapped[datetime]
