"""Tenants, their keys, and their budgets."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

from sqlalchemy import CheckConstraint, Float, ForeignKey, Index, Integer, Numeric, Text, func, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from jobs.states import AskedPriority, BudgetUnit, BudgetWindow, PrincipalKind, Priority
from jobs.tables.base import Base, created_at, one_of


class Tenant(Base):
    """Owner of keys, files, batches and a budget. `weight` is its share of the GPUs relative to other tenants."""

    __tablename__ = "tenant"
    __table_args__ = (
        CheckConstraint("weight > 0", name="weight"),
        CheckConstraint(one_of("best_priority", AskedPriority), name="best_priority"),
        Index("tenant_never_urgent_idx", "id", postgresql_where=text("max_urgent_tokens = 0")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    weight: Mapped[float] = mapped_column(Float, server_default="1")
    created_at: Mapped[datetime] = created_at()
    # Limits of `jobs.accounts.limits`; None: the default of the settings.
    max_open_batches: Mapped[int | None]
    max_enqueued_tokens: Mapped[int | None]
    max_files: Mapped[int | None]
    max_stored_bytes: Mapped[int | None]
    max_requests_per_minute: Mapped[int | None]
    max_tokens_per_minute: Mapped[int | None]
    max_uploads: Mapped[int | None]
    max_downloads: Mapped[int | None]
    deleted_at: Mapped[datetime | None]  # its keys are revoked, and its data is deleted as its batches end
    retention_days: Mapped[int | None] = mapped_column(Integer)  # of its results; null: the service's
    # The best class that its batches may request.
    best_priority: Mapped[str] = mapped_column(server_default=Priority.URGENT.value)
    max_urgent_tokens: Mapped[int | None]  # one of the limits above
    may_overflow: Mapped[bool] = mapped_column(server_default="false")  # batches beyond its token limit: class overflow
    disabled_at: Mapped[datetime | None]  # since when its submits are refused
    enabled_at: Mapped[datetime | None]  # when it was enabled again; null: never disabled
    max_reading_seconds_per_day: Mapped[int | None]  # one of the limits above
    max_bytes_per_minute: Mapped[int | None]  # one of the limits above
    # Whether its lines may go to servers outside the house: `jobs.engines.fits`.
    may_leave_house: Mapped[bool] = mapped_column(server_default="false")


class ApiKey(Base):
    """A bearer key; only its SHA-256 is stored (keys are 256 random bits, so a slow hash would add nothing)."""

    __tablename__ = "api_key"
    __table_args__ = (
        CheckConstraint(
            "CASE WHEN tenant_id IS NULL THEN scopes = '{admin}' "
            "ELSE scopes <@ '{submit,read}' AND cardinality(scopes) > 0 END",
            name="scopes",
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str | None] = mapped_column(ForeignKey("tenant.id"), index=True)  # null: an operator's key
    key_hash: Mapped[str] = mapped_column(unique=True)
    hint: Mapped[str]  # the first characters, for lists
    created_at: Mapped[datetime] = created_at()
    revoked_at: Mapped[datetime | None]
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text))
    name: Mapped[str | None]
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]  # to the minute
    previous_hash: Mapped[str | None] = mapped_column(unique=True)  # of the secret before the last rotation,
    previous_until: Mapped[datetime | None]  # which is valid until then


class Budget(Base):
    """Token budget of a tenant. `limit_tokens` None means unlimited. limit − spent − reserved is available.

    spent + reserved never exceeds the larger of limit and `committed_tokens`.
    """

    __tablename__ = "budget"
    __table_args__ = (
        CheckConstraint("reserved_tokens >= 0", name="reserved"),
        CheckConstraint("spent_tokens >= 0", name="spent"),
        {"postgresql_with": {"fillfactor": "50"}},
    )

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"), primary_key=True)
    limit_tokens: Mapped[int | None]
    reserved_tokens: Mapped[int] = mapped_column(server_default="0")
    spent_tokens: Mapped[int] = mapped_column(server_default="0")
    refused_lines: Mapped[int] = mapped_column(server_default="0")  # invalid ones, and
    refused_bytes: Mapped[int] = mapped_column(server_default="0")  # their sizes: read without a price
    committed_tokens: Mapped[int] = mapped_column(server_default="0")  # spent and reserved before this limit was set
    num_window_budgets: Mapped[int] = mapped_column(Integer, server_default="0")  # of the tenant and its keys
    # in class overflow, not counted against the limit
    overflow_spent_tokens: Mapped[int] = mapped_column(server_default="0")
    reading_day: Mapped[date | None]  # UTC day of the tenant's last document reading,
    reading_microseconds: Mapped[int] = mapped_column(server_default="0")  # and its reading time on that day


class WindowBudget(Base):
    """Budget of a tenant, or of one of its keys, per day, per month or in total: `jobs.accounts.window_budgets`.

    Amounts are tokens, or pico-units of currency.
    """

    __tablename__ = "window_budget"
    __table_args__ = (
        Index(
            "window_budget_scope_idx",
            "tenant_id", text("coalesce(api_key_id, '')"), "unit", "window_kind",
            unique=True,
        ),
        CheckConstraint(one_of("unit", BudgetUnit), name="unit"),
        CheckConstraint(one_of("window_kind", BudgetWindow), name="window_kind"),
        {"postgresql_with": {"fillfactor": "50"}},
    )  # fmt: skip

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    api_key_id: Mapped[str | None] = mapped_column(ForeignKey("api_key.id"))  # null: all of the tenant's
    unit: Mapped[str]
    window_kind: Mapped[str]
    time_zone: Mapped[str]
    limit_amount: Mapped[Decimal] = mapped_column(Numeric)
    warn_percent: Mapped[int | None] = mapped_column(Integer)
    window_start: Mapped[datetime | None]  # both null: the window has no beginning and no end
    window_end: Mapped[datetime | None]
    spent_amount: Mapped[Decimal] = mapped_column(Numeric, server_default="0")  # in this window
    committed_amount: Mapped[Decimal] = mapped_column(Numeric, server_default="0")  # before this limit was set
    warned_at: Mapped[datetime | None]  # in this window
    created_at: Mapped[datetime] = created_at()


class BrowserSession(Base):
    """A signed-in browser; only the SHA-256 of its token is stored. `jobs.accounts.browser_sessions`."""

    __tablename__ = "browser_session"
    __table_args__ = (CheckConstraint(one_of("principal_kind", PrincipalKind), name="principal_kind"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    token_hash: Mapped[str] = mapped_column(unique=True)
    principal_kind: Mapped[str]
    principal_id: Mapped[str] = mapped_column(index=True)
    key_hash: Mapped[str | None]  # of the key's secret that signed in; null: the principal is no key
    created_at: Mapped[datetime] = created_at()
    last_seen_at: Mapped[datetime] = mapped_column(server_default=func.now())  # to some minutes
    expires_at: Mapped[datetime]
    user_agent: Mapped[str]  # truncated, as the browser sent it when it signed in
