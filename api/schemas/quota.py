"""`/v1/quota`: what a tenant may still use of its budgets and limits."""

from __future__ import annotations

from typing import Literal, Self

from api.schemas.wire import WireModel, unix_seconds_or_none
from jobs.accounts.allowances import Allowance
from jobs.accounts.budgets import Quota
from jobs.accounts.money import PICOS_A_MICRO, rounded_micros
from jobs.states import BudgetUnit, BudgetWindow


class BudgetObject(WireModel):
    """A budget; `unit` tells whether amounts are tokens or micro-units of currency."""

    object: Literal["budget"] = "budget"
    id: str | None
    """Null for the tenant's token budget, which submissions are checked against."""
    key_id: str | None
    """Null if it covers all keys of the tenant."""
    unit: Literal["tokens", "micros"]
    window: BudgetWindow
    time_zone: str | None
    """The time zone in which a day or month begins."""
    limit: int | None
    """Null if there is none."""
    spent: int
    """Amount spent in this window."""
    reserved: int
    """Amount that accepted work may still use: batches that have not ended, or running lines."""
    left: int | None
    """Amount left; below 0 if the limit was set below what is spent and reserved; null without a limit."""
    resets_at: int | None
    """When `spent` resets; null if never."""
    warn_percent: int | None
    """Percentage of the limit from which a warning is shown."""
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
    def of_window(cls, allowance: Allowance) -> Self:
        is_money = allowance.unit is BudgetUnit.MONEY
        return cls(
            id=allowance.budget_id,
            key_id=allowance.key_id,
            unit="micros" if is_money else "tokens",
            window=allowance.window,
            time_zone=None if allowance.turns_at is None else allowance.time_zone,
            limit=rounded_micros(allowance.limit) if is_money else allowance.limit,
            spent=rounded_micros(allowance.spent) if is_money else allowance.spent,
            reserved=rounded_micros(allowance.reserved) if is_money else allowance.reserved,
            left=allowance.left // PICOS_A_MICRO if is_money else allowance.left,
            resets_at=unix_seconds_or_none(allowance.turns_at),
            warn_percent=allowance.warn_percent,
            is_warning=allowance.is_warning,
        )


class LimitObject(WireModel):
    object: Literal["limit"] = "limit"
    name: str
    """The name that `tokenmill tenants limits` uses."""
    limit: int | None
    """Null if there is none."""
    used: int | None
    """Null if it is not counted, or not in one place."""
    left: int | None

    @classmethod
    def of(cls, name: str, limit: int | None, used: int | None) -> Self:
        left = None if used is None or limit is None else max(limit - used, 0)
        return cls(name=name, limit=limit, used=used, left=left)


class QuotaObject(WireModel):
    object: Literal["quota"] = "quota"
    currency: str
    """Currency of budgets in micro-units."""
    budgets: list[BudgetObject]
    may_overflow: bool
    """Whether a batch beyond the token budget is accepted in class overflow, on spare capacity."""
    may_leave_house: bool
    """Whether lines that would miss their deadline may go to servers outside the house."""
    overflow_spent: int
    """Tokens that such batches have used so far; they do not count against the token budget."""
    limits: list[LimitObject]
