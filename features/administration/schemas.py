"""`/v1/admin/…`: operators' views of tenants, keys, budgets, models, workers and the admin log."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, Self

from api.schemas.quota import BudgetObject
from api.schemas.wire import DeletedObject, WholeList, WireModel, unix_seconds, unix_seconds_or_none
from jobs.accounts.budgets import Quota
from jobs.accounts.limits import NAMES
from jobs.accounts.money import PICOS_A_MICRO, in_currency
from jobs.chunks.fleet import out_reason_of
from jobs.lines.endpoints import LineKind
from jobs.scaling.limits import Limits
from jobs.states import AskedPriority, Scope
from jobs.tables import AdminEntry, ApiKey, Model, Tenant, Worker


class TenantObject(WireModel):
    id: str
    object: Literal["tenant"] = "tenant"
    created_at: int
    name: str
    weight: float
    """Its share of the GPUs relative to other tenants."""
    best_priority: AskedPriority
    """The highest class that its batches may request."""
    may_overflow: bool
    """Whether batches beyond its token budget run on spare capacity."""
    may_leave_house: bool
    """Whether its late lines may go to servers outside the house."""
    retention_days: int | None
    """Retention of its results; null for the service's default."""
    disabled_at: int | None
    """Since then nothing new is accepted from it."""
    token_budget: BudgetObject
    limits: dict[str, int | None]
    """By name; null for the value of the settings."""

    @classmethod
    def of(cls, tenant: Tenant, quota: Quota) -> Self:
        return cls(
            id=tenant.id,
            created_at=unix_seconds(tenant.created_at),
            name=tenant.name,
            weight=tenant.weight,
            best_priority=AskedPriority(tenant.best_priority),
            may_overflow=tenant.may_overflow,
            may_leave_house=tenant.may_leave_house,
            retention_days=tenant.retention_days,
            disabled_at=unix_seconds_or_none(tenant.disabled_at),
            token_budget=BudgetObject.of(quota),
            limits={name: getattr(tenant, f"max_{name}") for name in NAMES},
        )


class TenantList(WholeList[TenantObject]):
    """All tenants, oldest first."""


class DeletedTenant(DeletedObject):
    object: Literal["tenant.deleted"] = "tenant.deleted"


class KeyObject(WireModel):
    id: str
    object: Literal["key"] = "key"
    created_at: int
    tenant_id: str | None
    """Null for an operator's key."""
    name: str | None
    hint: str
    """The first characters of its secret."""
    scopes: list[Scope]
    expires_at: int | None
    """Null for never."""
    last_used_at: int | None
    """Accurate to the minute."""
    previous_until: int | None
    """Until when the secret before the last rotation works."""
    revoked_at: int | None

    @classmethod
    def of(cls, key: ApiKey) -> Self:
        return cls(**_fields_of(key))


class KeyWithSecret(KeyObject):
    """A key with its secret, which is only in the response to the call that made it."""

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
    """All keys, revoked ones included, oldest first."""


class BudgetList(WholeList[BudgetObject]):
    """The tenant's token budget, then those of days, months and keys."""


class DeletedBudget(DeletedObject):
    object: Literal["budget.deleted"] = "budget.deleted"


class AdminModelObject(WireModel):
    """A model; prices are in micro-units of currency for a million tokens."""

    object: Literal["model"] = "model"
    name: str
    path: str
    base: str | None
    """Of an adapter, the model whose workers run its lines."""
    adapter: str | None
    """Its name at their servers."""
    serves: LineKind
    is_offered: bool
    """Whether batches may name it: it was checked, or a worker has loaded it."""
    input_price_micros: int
    cached_input_price_micros: int | None
    """Null for the price of uncached input."""
    output_price_micros: int
    urgent_price_percent: int
    """Percentage of these prices."""
    bulk_price_percent: int

    @classmethod
    def of(cls, model: Model) -> Self:
        return cls(
            name=model.name,
            path=model.path,
            base=model.base,
            adapter=model.adapter,
            serves=LineKind(model.serves),
            is_offered=model.checked_at is not None,
            input_price_micros=model.input_price_picos,
            cached_input_price_micros=model.cached_input_price_picos,
            output_price_micros=model.output_price_picos,
            urgent_price_percent=model.urgent_price_percent,
            bulk_price_percent=model.bulk_price_percent,
        )


class AdminModelList(WholeList[AdminModelObject]):
    """All models, by name."""


class DeletedModel(WireModel):
    name: str
    object: Literal["model.deleted"] = "model.deleted"
    deleted: Literal[True] = True


class ScalingObject(WireModel):
    """How many workers a model may have."""

    object: Literal["scaling"] = "scaling"
    model: str
    min_workers: int
    max_workers: int
    startup_seconds: float
    expected_rate: float | None
    """Tokens a second of a worker, where none was measured lately."""
    worker_hour_micros: int | None
    """Cost of a worker an hour, in micro-units of currency."""
    max_hour_micros: int | None
    """The most that all workers may cost an hour."""

    @classmethod
    def of(cls, model: str, limits: Limits) -> Self:
        return cls(
            model=model,
            min_workers=limits.min_workers,
            max_workers=limits.max_workers,
            startup_seconds=limits.startup_seconds,
            expected_rate=limits.expected_rate,
            worker_hour_micros=_micros(limits.worker_hour_picos),
            max_hour_micros=_micros(limits.max_hour_picos),
        )


def _micros(picos: int | None) -> int | None:
    return None if picos is None else picos // PICOS_A_MICRO


class ScalingList(WholeList[ScalingObject]):
    """The settings of all models that have them, by name."""


class RemovedScaling(WireModel):
    model: str
    object: Literal["scaling.deleted"] = "scaling.deleted"
    deleted: Literal[True] = True


class WorkerObject(WireModel):
    id: str
    object: Literal["worker"] = "worker"
    model: str
    hostname: str
    pid: int
    max_chunks: int
    engine: str
    """The kind of its engine: `tokenmill` is ours."""
    engine_version: str | None
    engine_dtype: str | None
    spill_budget: str | None
    """What its server outside the house may cost a day, in units of currency; null: it is of the house."""
    spill_used: str | None
    """What all such servers of its model may have cost today."""
    started_at: int
    heartbeat_at: int
    draining_since: int | None
    """Since then it claims nothing, and finishes its work."""
    out_reason: str | None
    """Why it claims nothing: it loads its model, or has taken itself out of service and released its work; then a
    resume puts it back."""
    may_serve: list[str]
    """All models of a worker that serves one of several at a time; empty: it serves its model alone."""
    left_out: dict[str, str]
    """Those of them that it could not load, with the reasons; it tries again."""

    @classmethod
    def of(cls, worker: Worker, *, spill_used: Mapping[str, int]) -> Self:
        """`spill_used` is what was used today, by model."""
        budget = worker.spill_budget_picos
        return cls(
            id=worker.id,
            spill_budget=None if budget is None else in_currency(int(budget)),
            spill_used=None if budget is None else in_currency(spill_used.get(worker.model, 0)),
            model=worker.model,
            hostname=worker.hostname,
            pid=worker.pid,
            max_chunks=worker.max_chunks,
            engine=worker.engine,
            engine_version=worker.engine_version,
            engine_dtype=worker.engine_dtype,
            started_at=unix_seconds(worker.started_at),
            heartbeat_at=unix_seconds(worker.heartbeat_at),
            draining_since=unix_seconds_or_none(worker.draining_at),
            out_reason=out_reason_of(worker),
            may_serve=worker.may_serve,
            left_out=worker.left_out,
        )


class WorkerList(WholeList[WorkerObject]):
    """The live workers, oldest first."""


class AdminEntryObject(WireModel):
    id: int
    object: Literal["admin_entry"] = "admin_entry"
    at: int
    actor: str
    """`key:` and a key's id, or `user:` and the operating system's user name for the command line."""
    action: str
    subject: str
    """The id or name of the changed object."""
    tenant_id: str | None
    """The object's tenant."""
    before: dict[str, Any] | None
    """The object before the change; null if it was created."""
    after: dict[str, Any] | None
    """The object afterwards; null if it was removed."""

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
    """Whether another page follows, after the `id` of the last entry."""
