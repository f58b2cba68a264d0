"""`/v1/admin/…`: tenants, keys, budgets, models, workers and the admin log, as operators see them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Self

from api.schemas.quota import BudgetObject
from api.schemas.wire import DeletedObject, WholeList, WireModel, unix_seconds, unix_seconds_or_none
from jobs.accounts.budgets import Quota
from jobs.accounts.limits import NAMES
from jobs.chunks.fleet import out_reason_of
from jobs.lines.endpoints import LineKind
from jobs.states import AskedPriority, Scope
from jobs.tables import AdminEntry, ApiKey, Model, Tenant, Worker


class TenantObject(WireModel):
    id: str
    object: Literal["tenant"] = "tenant"
    created_at: int
    name: str
    weight: float
    """Its share of the GPUs against other tenants."""
    best_priority: AskedPriority
    """The best class its batches may ask for."""
    may_overflow: bool
    """Whether batches beyond its token budget run on spare capacity."""
    retention_days: int | None
    """Of its results; null: as the service keeps them."""
    disabled_at: int | None
    """Since then nothing new is accepted of it."""
    token_budget: BudgetObject
    limits: dict[str, int | None]
    """By name; null: as the settings say."""

    @classmethod
    def of(cls, tenant: Tenant, quota: Quota) -> Self:
        return cls(
            id=tenant.id,
            created_at=unix_seconds(tenant.created_at),
            name=tenant.name,
            weight=tenant.weight,
            best_priority=AskedPriority(tenant.best_priority),
            may_overflow=tenant.may_overflow,
            retention_days=tenant.retention_days,
            disabled_at=unix_seconds_or_none(tenant.disabled_at),
            token_budget=BudgetObject.of(quota),
            limits={name: getattr(tenant, f"max_{name}") for name in NAMES},
        )


class TenantList(WholeList[TenantObject]):
    """All of them, oldest first."""


class DeletedTenant(DeletedObject):
    object: Literal["tenant.deleted"] = "tenant.deleted"


class KeyObject(WireModel):
    id: str
    object: Literal["key"] = "key"
    created_at: int
    tenant_id: str | None
    """Null: an operator's key."""
    name: str | None
    hint: str
    """The first characters of its secret."""
    scopes: list[Scope]
    expires_at: int | None
    """Null: never."""
    last_used_at: int | None
    """To the minute."""
    previous_until: int | None
    """Until when the secret before the last rotation works."""
    revoked_at: int | None

    @classmethod
    def of(cls, key: ApiKey) -> Self:
        return cls(**_fields_of(key))


class KeyWithSecret(KeyObject):
    """The only answers with a secret: to the call that made it."""

    secret: str

    @classmethod
    def made(cls, key: ApiKey, secret: str) -> Self:
        return cls(**_fields_of(key), secret=secret)


def _fields_of(key: ApiKey) -> dict[str, Any]:
    moments: dict[str, datetime | None] = {
        "expires_at": key.expires_at,
        "last_used_at": key.last_used_at,
        "previous_until": key.previous_until,
        "revoked_at": key.revoked_at,
    }
    return {
        "id": key.id,
        "created_at": unix_seconds(key.created_at),
        "tenant_id": key.tenant_id,
        "name": key.name,
        "hint": key.hint,
        "scopes": key.scopes,
        **{name: unix_seconds_or_none(moment) for name, moment in moments.items()},
    }


class KeyList(WholeList[KeyObject]):
    """All of them, revoked ones included, oldest first."""


class BudgetList(WholeList[BudgetObject]):
    """The tenant's token budget, then those of days, months and keys."""


class DeletedBudget(DeletedObject):
    object: Literal["budget.deleted"] = "budget.deleted"


class AdminModelObject(WireModel):
    """Prices are micro-units of currency for a million tokens."""

    object: Literal["model"] = "model"
    name: str
    path: str
    serves: LineKind
    is_offered: bool
    """Whether batches may name it: it was checked, or a worker has loaded it."""
    input_price_micros: int
    cached_input_price_micros: int | None
    """Null: as the others."""
    output_price_micros: int
    urgent_price_percent: int
    """Of these prices."""
    bulk_price_percent: int

    @classmethod
    def of(cls, model: Model) -> Self:
        return cls(
            name=model.name,
            path=model.path,
            serves=LineKind(model.serves),
            is_offered=model.checked_at is not None,
            input_price_micros=model.input_price_picos,
            cached_input_price_micros=model.cached_input_price_picos,
            output_price_micros=model.output_price_picos,
            urgent_price_percent=model.urgent_price_percent,
            bulk_price_percent=model.bulk_price_percent,
        )


class AdminModelList(WholeList[AdminModelObject]):
    """All of them, by name."""


class DeletedModel(WireModel):
    name: str
    object: Literal["model.deleted"] = "model.deleted"
    deleted: Literal[True] = True


class WorkerObject(WireModel):
    id: str
    object: Literal["worker"] = "worker"
    model: str
    hostname: str
    pid: int
    max_chunks: int
    started_at: int
    heartbeat_at: int
    draining_since: int | None
    """Since then it begins nothing; what it has it finishes."""
    out_reason: str | None
    """Why it has taken itself out and given back what it had; a resume has it work again."""

    @classmethod
    def of(cls, worker: Worker) -> Self:
        return cls(
            id=worker.id,
            model=worker.model,
            hostname=worker.hostname,
            pid=worker.pid,
            max_chunks=worker.max_chunks,
            started_at=unix_seconds(worker.started_at),
            heartbeat_at=unix_seconds(worker.heartbeat_at),
            draining_since=unix_seconds_or_none(worker.draining_at),
            out_reason=out_reason_of(worker),
        )


class WorkerList(WholeList[WorkerObject]):
    """Those that are alive, oldest first."""


class AdminEntryObject(WireModel):
    id: int
    object: Literal["admin_entry"] = "admin_entry"
    at: int
    actor: str
    """`key:` and a key's id, or `user:` and a name of the operating system where the command line ran."""
    action: str
    subject: str
    """The id or name of what was changed."""
    tenant_id: str | None
    """Whose it is."""
    before: dict[str, Any] | None
    """Of what was changed; null: it was not there."""
    after: dict[str, Any] | None
    """Null: it is gone."""

    @classmethod
    def of(cls, entry: AdminEntry) -> Self:
        return cls(
            id=entry.id,
            at=unix_seconds(entry.at),
            actor=entry.actor,
            action=entry.action,
            subject=entry.subject,
            tenant_id=entry.tenant_id,
            before=entry.before,
            after=entry.after,
        )


class AdminLogPage(WireModel):
    """Newest first."""

    object: Literal["list"] = "list"
    data: list[AdminEntryObject]
    has_more: bool
    """Another page with at least one entry follows: after the last one's `id`."""
