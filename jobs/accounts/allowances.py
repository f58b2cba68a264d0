"""What is left of a window budget or a batch's cap, and its description in words.

No SQL.
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
    """The current state of one budget. Amounts are tokens, or pico-units of currency."""

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
    """Covered by running lines."""
    warn_percent: int | None
    turns_at: datetime | None
    """When `spent` is reset; None: never."""

    @property
    def left(self) -> int:
        """Return what is left; below 0 where the limit was set below what is spent and reserved."""
        return self.limit - self.spent - self.reserved

    @property
    def is_warning(self) -> bool:
        """Return whether spending has reached the warning threshold."""
        return self.warn_percent is not None and self.spent * 100 >= self.limit * self.warn_percent

    def amount(self, value: int, currency: str) -> str:
        """Return an amount as text, with its unit."""
        return counted(value, "token") if self.unit is BudgetUnit.TOKENS else f"{in_currency(value)} {currency}"

    def described(self, currency: str) -> str:
        """Describe the budget, its numbers and when it is reset, as the end of a sentence for its owner."""
        whose = "your budget" if self.key_id is None else f"the budget of key {self.key_id}"
        numbers = (
            f"{whose} {_OF_WINDOW[self.window]} is {self.amount(self.limit, currency)}, "
            f"{self.amount(self.spent, currency)} spent and {self.amount(self.reserved, currency)} reserved"
        )
        if self.turns_at is None:
            return f"{numbers}; it can be raised by your operator"
        local = self.turns_at.astimezone(zone_of(self.time_zone))
        return f"{numbers}; it is reset at {local.isoformat()} ({self.time_zone})"
