"""Token budgets of simulated tenants: a line is covered with the most that it may use, and settled when it has ended.

Knows no queue, and no window that turns: a budget is for the whole replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobs.accounts.covers import fitting


class TokenBudgets:
    """What tenants with a limit have left; others have no end of tokens."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._left = dict(limits)

    def room(self, tenant: str) -> int | None:
        """Return what is neither used nor covered, None without a limit."""
        return self._left.get(tenant)

    def cover(self, tenant: str, costs: Sequence[int]) -> list[bool]:
        """Cover lines that are about to run, as far as there is room; return which."""
        room = self._left.get(tenant)
        if room is None:
            return [True] * len(costs)
        fits, tokens, _ = fitting(costs, room)
        self._left[tenant] = room - tokens
        return fits

    def settle(self, tenant: str, *, covered: int, used: int) -> None:
        """Give back what a line that has ended did not use."""
        if tenant in self._left:
            self._left[tenant] += covered - used
