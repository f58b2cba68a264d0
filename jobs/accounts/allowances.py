"""What a budget beside a tenant's own has left, and the words for it: of a window budget, or the cap of a batch.

Knows no SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from jobs.accounts.money import in_currency
from jobs.accounts.windows import zone_of
from jobs.counted import counted
from jobs.states import BudgetUnit, BudgetWindow

_OF_WINDOW = {BudgetWindow.DAY: "of the day", BudgetWindow.MONTH: "of the month", BudgetWindow.TOTAL: "in all"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """One budget as it is now. Amounts are tokens, or pico-units of currency."""

    budget_id: str
    key_id: str | None
    """None: all keys of the tenant together."""
    unit: BudgetUnit
    window: BudgetWindow
    time_zone: str
    limit: int
    spent: int
    """In this window."""
    reserved: int
    """What lines that run may use."""
    warn_percent: int | None
    turns_at: datetime | None
    """When `spent` begins anew; None: never."""

    @property
    def left(self) -> int:
        """Return what is left; below 0 where the limit was set below what is spent and reserved."""
        return self.limit - self.spent - self.reserved

    @property
    def is_warning(self) -> bool:
        """Tell whether as much is spent as it was to warn at."""
        return self.warn_percent is not None and self.spent * 100 >= self.limit * self.warn_percent

    def amount(self, value: int, currency: str) -> str:
        """Return an amount of it as text, with its unit."""
        return counted(value, "token") if self.unit is BudgetUnit.TOKENS else f"{in_currency(value)} {currency}"

    def described(self, currency: str) -> str:
        """Return what it is, with its numbers, and when there is more: the end of a sentence for its owner."""
        whose = "your budget" if self.key_id is None else f"the budget of key {self.key_id}"
        numbers = (
            f"{whose} {_OF_WINDOW[self.window]} is {self.amount(self.limit, currency)}, "
            f"{self.amount(self.spent, currency)} spent and {self.amount(self.reserved, currency)} reserved"
        )
        if self.turns_at is None:
            return f"{numbers}; it can be raised by your operator"
        local = self.turns_at.astimezone(zone_of(self.time_zone))
        return f"{numbers}; it begins anew at {local.isoformat()} ({self.time_zone})"
