"""What a batch waits for whose chunks wait for its tenant's budget, as a sentence for its owner. No SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from jobs.accounts.allowances import Allowance
from jobs.accounts.budgets import Quota
from jobs.counted import counted
from jobs.states import BatchState, BudgetUnit, Priority
from jobs.tables import Batch


def waits_for(batch: Batch, quota: Quota, allowances: Sequence[Allowance] = (), *, currency: str = "") -> str | None:
    """Return what a batch whose chunks wait for a tenant budget lacks, as a sentence for its owner.

    `allowances` are all window budgets of the tenant.
    """
    if batch.state != BatchState.IN_PROGRESS or batch.waits_for_tokens is None:
        return None
    if batch.priority == Priority.OVERFLOW:
        quota = Quota(limit=None, reserved=0, spent=0)  # the token limit does not apply to it
    tightest = _tightest(batch, allowances)
    if tightest is not None:
        needed = batch.waits_for_tokens if tightest.unit is BudgetUnit.TOKENS else int(batch.waits_for_picos or 0)
        return (
            f"waiting_budget: the batch continues when there is room for {tightest.amount(needed, currency)}: "
            f"{tightest.described(currency)}."
        )
    if quota.limit is None or batch.waits_for_tokens <= (quota.available or 0):
        both = _unmatched(batch, quota, allowances, currency)
        if both is not None:
            return both
    if quota.limit is None:
        return None  # the limit was raised just now: the next sweep wakes the chunks
    return (
        f"waiting_budget: the batch continues when there is room for {counted(batch.waits_for_tokens, 'token')}, and "
        f"{max(quota.available or 0, 0):,} are available: the limit is {quota.limit:,}, {quota.spent:,} are spent and "
        f"{quota.reserved:,} are reserved. Room becomes available when lines end below their max_tokens, other batches "
        "end, or the limit is raised."
    )


def _unmatched(batch: Batch, quota: Quota, allowances: Sequence[Allowance], currency: str) -> str | None:
    """Return the sentence for a batch whose fewest tokens and least cost both fit, but belong to different lines.

    None where only one of the two units is limited: then there is room.
    """
    holding = {allowance.unit: allowance for allowance in allowances if allowance.key_id in (None, batch.api_key_id)}
    money = holding.get(BudgetUnit.MONEY)
    if money is None or (quota.limit is None and BudgetUnit.TOKENS not in holding):
        return None
    return (
        "waiting_budget: the batch continues when one of its lines has room in budgets of tokens and of money at once: "
        f"the smallest needs {counted(batch.waits_for_tokens or 0, 'token')}, another one, the cheapest, "
        f"{money.amount(int(batch.waits_for_picos or 0), currency)}."
    )


def _tightest(batch: Batch, allowances: Sequence[Allowance]) -> Allowance | None:
    """Return the window budget without room for the batch's next line that will have room last."""
    needed = {BudgetUnit.TOKENS: batch.waits_for_tokens or 0, BudgetUnit.MONEY: int(batch.waits_for_picos or 0)}
    holding = [allowance for allowance in allowances if allowance.key_id in (None, batch.api_key_id)]
    lacking = [allowance for allowance in holding if needed[allowance.unit] > allowance.left]
    never = datetime.max.replace(tzinfo=UTC)
    return max(lacking, key=lambda allowance: allowance.turns_at or never, default=None)
