"""Token budgets of simulated tenants: a line is covered with its maximum, and settled when it has ended.

A budget is for the whole replay; there are no windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobs.accounts.covers import fitting


class TokenBudgets:
    """The remaining tokens of tenants with a limit; others are unlimited."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._left = dict(limits)

    def room(self, tenant: str) -> int | None:
        """Return the tokens that are neither used nor covered, or None without a limit."""
        return self._left.get(tenant)

    def cover(self, tenant: str, costs: Sequence[int]) -> list[bool]:
        """Cover lines that are about to run, as far as there is room; return which are covered."""
        room = self._left.get(tenant)
        if room is None:
            return [True] * len(costs)
        fits, tokens, _ = fitting(costs, room)
        self._left[tenant] = room - tokens
        return fits

    def settle(self, tenant: str, *, covered: int, used: int) -> None:
        """Return the tokens that an ended line did not use."""
        if tenant in self._left:
            self._left[tenant] += covered - used
