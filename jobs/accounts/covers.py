"""Cover the lines of a batch before they start, each with the most that it may use.

Cover comes from the batch's reservation and the rest of its tenant's budget, bounded by window budgets and the batch's
caps. For the invariants and the order of locks see budgets.py.
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
    """Of the lines that fit."""
    picos: int = 0
    """Maximum cost of these."""
    quota: Quota | None = None
    """The tenant's budget, where some lines did not fit; None where all did."""
    allowances: Sequence[Allowance] = ()
    """The window budgets and the batch's caps, where some lines did not fit."""
    others_run: bool = False
    """Whether other lines of the tenant are covered: some of their tokens may come back."""

    def excess(self, tokens: int, picos: int) -> tuple[float, int]:
        """Return how much too large a line that did not fit is: the smallest is the one to wait for."""
        needed = {BudgetUnit.TOKENS: tokens, BudgetUnit.MONEY: picos}
        lefts = [(needed[allowance.unit], allowance.left) for allowance in self.allowances]
        if self.quota is not None and self.quota.available is not None:
            lefts.append((tokens, self.quota.available))
        return max((need / max(left, 1) for need, left in lefts), default=0.0), tokens

    def shortage_of(self, *, tokens: int, picos: int, currency: str) -> str:
        """Return what a line that did not fit lacks, as the rest of a sentence about it."""
        needed = {BudgetUnit.TOKENS: tokens, BudgetUnit.MONEY: picos}
        for allowance in self.allowances:
            if needed[allowance.unit] > allowance.left:
                return f"may use {allowance.amount(needed[allowance.unit], currency)}: {allowance.described(currency)}"
        quota = self.quota or Quota(limit=0, reserved=0, spent=0)
        return (
            f"may use {tokens:,} tokens and {max(quota.available or 0, 0):,} are available: the limit is "
            f"{quota.limit or 0:,}, {quota.spent:,} are spent and {quota.reserved:,} are reserved"
        )


def cover(
    session: Session, batch_id: str, tenant_id: str, costs: Sequence[int], *, picos: Sequence[int] = ()
) -> Covered:
    """Cover lines of a batch before they run, each with the most that it may use, in this order while they fit.

    `picos` is the maximum cost of each, nothing where it is empty. Takes the batch's reservation that covers no line
    yet, then the rest of the budget; window budgets and the batch's caps bound both. The caller stores `tokens` and
    `picos` in the chunk's row in the same transaction.
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
    covered = Covered(fits=fits, tokens=tokens, picos=picos_taken)
    if tokens > free and not reservation.is_overflow:
        grown = budgets.grow(session, tenant_id, tokens - free)
        assert grown is not None, "the budget is locked, and this fits"
    if not all(fits):
        others_run = bool(session.scalar(_OTHERS_RUN, {"id": tenant_id}))
        covered = replace(covered, quota=budget, allowances=allowances, others_run=others_run)
    growth = max(covered.tokens - free, 0)  # exactly what the budget grew by
    session.execute(
        update(Batch)
        .where(Batch.id == batch_id)
        .values(covered_tokens=reservation.covered + covered.tokens, reserved_tokens=reservation.tokens + growth)
    )
    return covered


def uncover(session: Session, batch_id: str, tokens: int) -> None:
    """Remove the cover of lines that no longer run and used nothing; their tokens stay reserved for the batch."""
    session.execute(update(Batch).where(Batch.id == batch_id).values(covered_tokens=Batch.covered_tokens - tokens))


def _rooms(budget: Quota, allowances: Sequence[Allowance], *, free: int) -> dict[BudgetUnit, int | None]:
    """Return the room per unit, None for unlimited: the batch's `free` plus the budget's rest, bounded by windows."""
    rooms = {unit: [max(bound.left, 0) for bound in allowances if bound.unit is unit] for unit in BudgetUnit}
    if budget.available is not None:
        rooms[BudgetUnit.TOKENS].append(free + max(budget.available, 0))
    return {unit: min(bound, default=None) for unit, bound in rooms.items()}


def fitting(
    costs: Sequence[int], room: int | None, picos: Sequence[int] = (), picos_room: int | None = None
) -> tuple[list[bool], int, int]:
    """Return which lines fit into both rooms together, and their sums; a smaller line may fit after one that does not.

    A room of None is unlimited.
    """
    fits, tokens_taken, picos_taken = [], 0, 0
    for cost, own_picos in zip(costs, picos or [0] * len(costs), strict=True):
        has_tokens = room is None or tokens_taken + cost <= room
        fits.append(has_tokens and (picos_room is None or picos_taken + own_picos <= picos_room))
        tokens_taken += cost if fits[-1] else 0
        picos_taken += own_picos if fits[-1] else 0
    return fits, tokens_taken, picos_taken


# The states are those of the index of live batches: a tenant may have any number of others.
_OTHERS_RUN = text(f"""
    SELECT EXISTS (
        SELECT FROM batch WHERE tenant_id = :id AND covered_tokens > 0
            AND {one_of("state", LIVE_BATCH_STATES)}
    )
""")
