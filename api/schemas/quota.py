"""`/v1/quota`: what a tenant may still use, of its budgets and of its limits."""

from __future__ import annotations

from typing import Literal, Self

from api.schemas.wire import WireModel, unix_seconds_or_none
from jobs.accounts.allowances import Allowance
from jobs.accounts.budgets import Quota
from jobs.accounts.money import PICOS_A_MICRO, rounded_micros
from jobs.states import BudgetUnit, BudgetWindow


class BudgetObject(WireModel):
    """Amounts are tokens or micro-units of currency, as `unit` says."""

    object: Literal["budget"] = "budget"
    id: str | None
    """Null for the tenant's token budget, which submits are held against."""
    key_id: str | None
    """Null: of all keys of the tenant together."""
    unit: Literal["tokens", "micros"]
    window: BudgetWindow
    time_zone: str | None
    """In which a day or month begins."""
    limit: int | None
    """Null: there is none."""
    spent: int
    """In this window."""
    reserved: int
    """What may still be used of what was accepted: by batches that have not ended, or by lines that run."""
    left: int | None
    """Of the limit: below 0 where it was set below what is spent and reserved; null where there is none."""
    resets_at: int | None
    """When `spent` begins anew; null: never."""
    warn_percent: int | None
    """Of the limit: from so much on it is warned of."""
    is_warning: bool

    @classmethod
    def of(cls, quota: Quota) -> Self:
        return cls(
            id=None,
            key_id=None,
            unit="tokens",
            window=BudgetWindow.TOTAL,
            time_zone=None,
            limit=quota.limit,
            spent=quota.spent,
            reserved=quota.reserved,
            left=quota.available,
            resets_at=None,
            warn_percent=None,
            is_warning=False,
        )

    @classmethod
    def of_window(cls, found: Allowance) -> Self:
        is_money = found.unit is BudgetUnit.MONEY
        return cls(
            id=found.budget_id,
            key_id=found.key_id,
            unit="micros" if is_money else "tokens",
            window=found.window,
            time_zone=None if found.turns_at is None else found.time_zone,
            limit=rounded_micros(found.limit) if is_money else found.limit,
            spent=rounded_micros(found.spent) if is_money else found.spent,
            reserved=rounded_micros(found.reserved) if is_money else found.reserved,
            left=found.left // PICOS_A_MICRO if is_money else found.left,
            resets_at=unix_seconds_or_none(found.turns_at),
            warn_percent=found.warn_percent,
            is_warning=found.is_warning,
        )


class LimitObject(WireModel):
    object: Literal["limit"] = "limit"
    name: str
    """As `tokenmill tenants limits` has it."""
    limit: int | None
    """Null where there is none."""
    used: int | None
    """Null where it is not counted, or not in one place."""
    left: int | None

    @classmethod
    def of(cls, name: str, limit: int | None, used: int | None) -> Self:
        left = None if used is None or limit is None else max(limit - used, 0)
        return cls(name=name, limit=limit, used=used, left=left)


class QuotaObject(WireModel):
    object: Literal["quota"] = "quota"
    currency: str
    """Of budgets in micro-units."""
    budgets: list[BudgetObject]
    may_overflow: bool
    """Whether a batch that the token budget does not cover is accepted in class overflow, on spare capacity."""
    overflow_spent: int
    """Tokens that such batches have used so far; they do not count against the token budget."""
    limits: list[LimitObject]
