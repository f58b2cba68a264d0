"""Which lines of a batch may run: each is covered with the most that it may use, before it starts.

Out of what the batch has reserved and its tenant's budget has left, as far as window budgets and the batch's caps let
it. What is kept at every commit, and in which order the rows are locked: budgets.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import text, update
from sqlalchemy.orm import Session

from jobs.accounts import batch_caps, budgets, window_budgets
from jobs.accounts.allowances import Allowance
from jobs.accounts.budgets import Quota
from jobs.states import LIVE_BATCH_STATES, BudgetUnit
from jobs.tables import Batch
from jobs.tables.base import one_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """Which of some lines may run."""

    fits: Sequence[bool]
    tokens: int
    """Those of the lines that fit."""
    picos: int = 0
    """What these may cost."""
    quota: Quota | None = None
    """The tenant's budget, where some lines did not fit; None where all did."""
    allowances: Sequence[Allowance] = ()
    """The window budgets and the batch's caps, where some lines did not fit."""
    others_run: bool = False
    """That other lines of the tenant are covered: some of their tokens may come back."""

    def excess(self, tokens: int, picos: int) -> tuple[float, int]:
        """Return how far a line that did not fit is from fitting: the least is that of the one to wait for."""
        needed = {BudgetUnit.TOKENS: tokens, BudgetUnit.MONEY: picos}
        lefts = [(needed[found.unit], found.left) for found in self.allowances]
        if self.quota is not None and self.quota.available is not None:
            lefts.append((tokens, self.quota.available))
        return max((need / max(left, 1) for need, left in lefts), default=0.0), tokens

    def shortage_of(self, *, tokens: int, picos: int, currency: str) -> str:
        """Return what a line that did not fit lacks, as the rest of a sentence about it."""
        needed = {BudgetUnit.TOKENS: tokens, BudgetUnit.MONEY: picos}
        for found in self.allowances:
            if needed[found.unit] > found.left:
                return f"may use {found.amount(needed[found.unit], currency)}: {found.described(currency)}"
        quota = self.quota or Quota(limit=0, reserved=0, spent=0)
        return (
            f"may use {tokens:,} tokens and {max(quota.available or 0, 0):,} are available: the limit is "
            f"{quota.limit or 0:,}, {quota.spent:,} are spent and {quota.reserved:,} are reserved"
        )


def cover(
    session: Session, batch_id: str, tenant_id: str, costs: Sequence[int], *, picos: Sequence[int] = ()
) -> Covered:
    """Cover lines of a batch before they run, each with the most that it may use, in this order while they fit.

    `picos` is the most that each may cost, nothing where it is not given. Takes what the batch has reserved for lines
    that do not run yet, then what the budget has left; what window budgets and the batch's caps have left bounds both.
    The caller stores `tokens` and `picos` in the chunk's row in the same transaction.
    """
    picos = picos or [0] * len(costs)
    reservation = budgets.lock_reservation(session, batch_id)
    free = reservation.free
    budget = budgets.locked_quota(session, tenant_id)
    if reservation.is_overflow:
        budget = replace(budget, limit=None)
    allowances: list[Allowance] = [*batch_caps.caps_of(session, batch_id)]
    if budget.num_window_budgets:
        allowances += window_budgets.current(session, tenant_id, reservation.key_id)
    rooms = _rooms(budget, allowances, free=free)
    fits, tokens, picos_taken = fitting(costs, rooms[BudgetUnit.TOKENS], picos, rooms[BudgetUnit.MONEY])
    found = Covered(fits=fits, tokens=tokens, picos=picos_taken)
    if tokens > free and not reservation.is_overflow:
        grown = budgets.grow(session, tenant_id, tokens - free)
        assert grown is not None, "the budget is locked, and this fits"
    if not all(fits):
        others_run = bool(session.scalar(_OTHERS_RUN, {"id": tenant_id}))
        found = replace(found, quota=budget, allowances=allowances, others_run=others_run)
    growth = max(found.tokens - free, 0)  # exactly what the budget grew by
    session.execute(
        update(Batch)
        .where(Batch.id == batch_id)
        .values(covered_tokens=reservation.covered + found.tokens, reserved_tokens=reservation.tokens + growth)
    )
    return found


def uncover(session: Session, batch_id: str, tokens: int) -> None:
    """Take the cover off lines that run no more and used nothing; their tokens stay reserved for the batch."""
    session.execute(update(Batch).where(Batch.id == batch_id).values(covered_tokens=Batch.covered_tokens - tokens))


def _rooms(budget: Quota, allowances: Sequence[Allowance], *, free: int) -> dict[BudgetUnit, int | None]:
    """Return what there is room for, None without end: what the batch has `free` and the budget has, if windows do."""
    rooms = {unit: [max(found.left, 0) for found in allowances if found.unit is unit] for unit in BudgetUnit}
    if budget.available is not None:
        rooms[BudgetUnit.TOKENS].append(free + max(budget.available, 0))
    return {unit: min(found, default=None) for unit, found in rooms.items()}


def fitting(
    costs: Sequence[int], room: int | None, picos: Sequence[int] = (), picos_room: int | None = None
) -> tuple[list[bool], int, int]:
    """Return which lines fit into both rooms together, and their sums; a smaller one may fit after one that does not.

    A room None is without end.
    """
    fits, taken, picos_taken = [], 0, 0
    for cost, own_picos in zip(costs, picos or [0] * len(costs), strict=True):
        has_tokens = room is None or taken + cost <= room
        fits.append(has_tokens and (picos_room is None or picos_taken + own_picos <= picos_room))
        taken += cost if fits[-1] else 0
        picos_taken += own_picos if fits[-1] else 0
    return fits, taken, picos_taken


# The states are those of the index of live batches: a tenant may have any number of others.
_OTHERS_RUN = text(f"""
    SELECT EXISTS (
        SELECT FROM batch WHERE tenant_id = :id AND covered_tokens > 0
            AND {one_of("state", LIVE_BATCH_STATES)}
    )
""")
