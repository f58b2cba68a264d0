"""`/v1/quota`: what a tenant may still use, of its budgets and of its limits."""

from __future__ import annotations

from typing import Literal, Self

from api.schemas.wire import WireModel
from jobs.accounts.budgets import Quota


class BudgetObject(WireModel):
    object: Literal["budget"] = "budget"
    unit: Literal["tokens"] = "tokens"
    window: Literal["total"] = "total"
    limit: int | None
    """Null: there is none."""
    spent: int
    reserved: int
    """By batches that have not ended."""
    left: int | None
    """Of the limit: below 0 where it was set below what is spent and reserved; null where there is none."""
    resets_at: int | None
    """When `spent` begins anew; null: never."""

    @classmethod
    def of(cls, quota: Quota) -> Self:
        return cls(limit=quota.limit, spent=quota.spent, reserved=quota.reserved, left=quota.available, resets_at=None)


class LimitObject(WireModel):
    object: Literal["limit"] = "limit"
    name: str
    """As `tokenmill tenants limits` has it."""
    limit: int
    used: int | None
    """Null where it is not counted, or not in one place."""
    left: int | None

    @classmethod
    def of(cls, name: str, limit: int, used: int | None) -> Self:
        return cls(name=name, limit=limit, used=used, left=None if used is None else max(limit - used, 0))


class QuotaObject(WireModel):
    object: Literal["quota"] = "quota"
    budgets: list[BudgetObject]
    limits: list[LimitObject]
