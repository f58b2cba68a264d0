"""Token budgets of tenants: reserve when a batch is accepted, cover lines before they run, settle as results arrive,
release at the end. Where a tenant has window budgets too, lines are covered by them as well.

Holds at every commit, class overflow apart: budget.spent = Σ ledger tokens of the tenant, budget.reserved = Σ
batch.reserved_tokens of its live batches; batch.covered_tokens = Σ of its leased chunks and at most
batch.reserved_tokens; and spent + reserved ≤ limit, or ≤ what was committed before that limit held. What class overflow
uses is counted beside it (`overflow_spent`), and what its batches reserve holds of window budgets alone. The budget row
is always the last one waited for (chunk → batch → budget).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import select, text, update
from sqlalchemy.orm import Session

from jobs.accounts import batch_caps, window_budgets
from jobs.accounts.window_budgets import Allowance
from jobs.errors import InputError, NotFoundError, OverBudgetError
from jobs.states import LIVE_BATCH_STATES, BudgetUnit, BudgetWindow, Priority
from jobs.tables import Batch, Budget
from jobs.tables.base import one_of

MAX_LIMIT_TOKENS = 10**15
"""A thousand years of a million tokens a minute; sums of such numbers stay far within a bigint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A tenant's budget in tokens."""

    limit: int | None
    """None: unlimited."""
    reserved: int
    """By batches that have not ended."""
    spent: int
    num_window_budgets: int = 0
    """That the tenant and its keys have beside it."""
    overflow_spent: int = 0
    """In class overflow, which does not count against the limit."""

    @property
    def available(self) -> int | None:
        """Return what is left, None where it is unlimited; below 0 where the limit was set below what is committed."""
        return None if self.limit is None else self.limit - self.spent - self.reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """Which of some lines may run."""

    fits: Sequence[bool]
    tokens: int
    """Those of the lines that fit."""
    picos: int = 0
    """What these may cost."""
    quota: Quota | None = None
    """The tenant's budget, where some did not fit into it, or into"""
    allowances: Sequence[Allowance] = ()
    """the window budgets, or the batch's caps."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedInput:
    """Bad lines of a tenant's batches: read and answered without a price."""

    lines: int
    size_bytes: int


def count_refused(session: Session, tenant_id: str, refused: RefusedInput) -> None:
    """Add to a tenant's refused input. Takes the lock of the budget row: last, as everywhere."""
    if refused.lines:
        added = {
            "refused_lines": Budget.refused_lines + refused.lines,
            "refused_bytes": Budget.refused_bytes + refused.size_bytes,
        }
        session.execute(update(Budget).where(Budget.tenant_id == tenant_id).values(added))


def refused_input(session: Session, tenant_id: str) -> RefusedInput:
    """Return what of a tenant's input was refused so far."""
    query = select(Budget.refused_lines, Budget.refused_bytes).where(Budget.tenant_id == tenant_id)
    lines, size_bytes = session.execute(query).one()
    return RefusedInput(lines=lines, size_bytes=size_bytes)


def quota(session: Session, tenant_id: str) -> Quota:
    """Read a tenant's budget. Raises NotFoundError where there is no such tenant."""
    return _quota(session, tenant_id)


def quotas(session: Session, tenant_ids: Collection[str]) -> dict[str, Quota]:
    """Read the budgets of tenants, by their ids, in one query."""
    rows = session.execute(select(Budget.tenant_id, *_QUOTA).where(Budget.tenant_id.in_(tenant_ids)))
    return {tenant_id: _quota_of(columns) for tenant_id, *columns in rows}


def check_limit(limit_tokens: int | None) -> None:
    """Raise InputError for a limit below zero, or one that nobody reaches."""
    if limit_tokens is not None and not 0 <= limit_tokens <= MAX_LIMIT_TOKENS:
        allowed = f"0 to {MAX_LIMIT_TOKENS}, or none for no limit"
        raise InputError(f"limit_tokens is {limit_tokens}; give {allowed}", param="limit_tokens")


def set_limit(session: Session, tenant_id: str, limit_tokens: int | None) -> Quota:
    """Set a tenant's limit in tokens; None makes it unlimited.

    What is spent and reserved by now may be more than the new limit: it stays, and nothing is added to it. Where there
    was no limit, lines of chunks that are leased now run on without cover, and what they use is committed too.
    """
    check_limit(limit_tokens)
    committed = Budget.spent_tokens + Budget.reserved_tokens
    session.execute(
        update(Budget)
        .where(Budget.tenant_id == tenant_id)
        .values(limit_tokens=limit_tokens, committed_tokens=committed)
    )
    return quota(session, tenant_id)


def reserve(
    session: Session, tenant_id: str, tokens: int, *, key_id: str | None = None, may_overflow: bool = False
) -> bool:
    """Set `tokens` aside for what a key submits. Raises OverBudgetError with the numbers where they are not covered.

    With `may_overflow` it returns False where the tenant's limit does not cover them: nothing is set aside then.

    What has no room in a day's or month's budget waits for the next one, so these refuse nothing here.
    One guarded UPDATE decides, so two submits at once cannot both take the last tokens. The caller stores the amount
    in `batch.reserved_tokens` in the same transaction.
    """
    num_window_budgets = _grow(session, tenant_id, tokens)
    is_covered = num_window_budgets is not None
    if num_window_budgets is None:
        found = _quota(session, tenant_id, is_locked=True)
        assert found.limit is not None
        if not may_overflow:
            raise OverBudgetError(limit=found.limit, spent=found.spent, reserved=found.reserved, needed=tokens)
        num_window_budgets = found.num_window_budgets
    if num_window_budgets:
        _check_totals(session, tenant_id, tokens, key_id=key_id)
    return is_covered


def _check_totals(session: Session, tenant_id: str, tokens: int, *, key_id: str | None) -> None:
    """Raise OverBudgetError where a budget that never begins anew is used up, or has no room for an estimate."""
    for found in window_budgets.current(session, tenant_id, key_id):
        if _is_too_small(found, tokens):
            raise OverBudgetError(
                limit=found.limit,
                spent=found.spent,
                reserved=found.reserved,
                needed=tokens if found.unit is BudgetUnit.TOKENS else 1,
                of_key=found.key_id,
                is_money=found.unit is BudgetUnit.MONEY,
            )


def has_room(session: Session, tenant_id: str, tokens: int, *, key_id: str | None) -> bool:
    """Tell whether `reserve` would pass now; reserves nothing."""
    available = quota(session, tenant_id).available
    held = [one for one in window_budgets.allowances(session, tenant_id) if one.key_id in (None, key_id)]
    return (available is None or tokens <= available) and not any(_is_too_small(one, tokens) for one in held)


def _is_too_small(found: Allowance, tokens: int) -> bool:
    needed = tokens if found.unit is BudgetUnit.TOKENS else 1
    return found.window is BudgetWindow.TOTAL and needed > found.left


def cover(
    session: Session, batch_id: str, tenant_id: str, costs: Sequence[int], *, picos: Sequence[int] = ()
) -> Covered:
    """Cover lines of a batch before they run, each with the most that it may use, in this order while they fit.

    `picos` is the most that each may cost, nothing where it is not given. Takes what the batch has reserved for lines
    that do not run yet, then what the budget has left; what window budgets and the batch's caps have left bounds both.
    The caller stores `tokens` and `picos` in the chunk's row in the same transaction.
    """
    picos = picos or [0] * len(costs)
    reserved, covered, key_id, is_overflow = _lock_batch(session, batch_id)
    free = max(reserved - covered, 0)
    budget = _quota(session, tenant_id, is_locked=True)
    if is_overflow:
        budget = replace(budget, limit=None)
    allowances: list[Allowance] = [*batch_caps.caps_of(session, batch_id)]
    if budget.num_window_budgets:
        allowances += window_budgets.current(session, tenant_id, key_id)
    rooms = _rooms(budget, allowances, free=free)
    fits, tokens, picos_taken = fitting(costs, rooms[BudgetUnit.TOKENS], picos, rooms[BudgetUnit.MONEY])
    found = Covered(fits=fits, tokens=tokens, picos=picos_taken)
    if tokens > free and not is_overflow:
        grown = _grow(session, tenant_id, tokens - free)
        assert grown is not None, "the budget is locked, and this fits"
    if not all(fits):
        others_run = bool(session.scalar(_OTHERS_RUN, {"id": tenant_id}))
        found = replace(found, quota=budget, allowances=allowances, others_run=others_run)
    # Exactly what the budget grew by: less is reserved than covered where a worker of an older release has billed.
    growth = max(found.tokens - free, 0)
    session.execute(
        update(Batch)
        .where(Batch.id == batch_id)
        .values(covered_tokens=covered + found.tokens, reserved_tokens=reserved + growth)
    )
    return found


def uncover(session: Session, batch_id: str, tokens: int) -> None:
    """Take the cover off lines that run no more and used nothing; their tokens stay reserved for the batch."""
    session.execute(update(Batch).where(Batch.id == batch_id).values(covered_tokens=Batch.covered_tokens - tokens))


def settle(
    session: Session,
    batch_id: str,
    tenant_id: str,
    tokens: int,
    *,
    picos: int = 0,
    uncovered: int = 0,
    is_limited: bool = True,
    is_overflow: bool = False,
) -> None:
    """Book `tokens` of freshly inserted results as spent, out of the batch's reservation as far as it reaches.

    They cost `picos`, which window budgets count. `uncovered` is the cover of the lines that have ended, which is never
    less than they used. Lines that were begun while there was no limit (`is_limited` False) had none: what they use is
    committed, whatever limit there is by now; what overflows never counts against it. Belongs in the transaction that
    inserts the results and their ledger entry.
    """
    assert tokens >= 0, tokens
    values = {
        "batch_id": batch_id,
        "tenant_id": tenant_id,
        "tokens": tokens,
        "uncovered": uncovered,
        "is_limited": is_limited,
        "is_overflow": is_overflow,
    }
    booked = session.execute(_SETTLE, values).one_or_none()
    if booked is not None and booked.num_window_budgets and tokens:
        window_budgets.spend(session, tenant_id, booked.api_key_id, tokens=tokens, picos=picos, is_limited=is_limited)


def release(session: Session, batch: Batch) -> int:
    """Give back what is left of a batch's reservation; return the tokens given back. Repeating it does nothing."""
    session.flush()
    part = release_free(session, batch.id, batch.tenant_id)
    session.refresh(batch, ["reserved_tokens", "covered_tokens"])
    return part


def release_free(session: Session, batch_id: str, tenant_id: str) -> int:
    """Give back what a batch has reserved beyond the cover of its running lines; return the tokens given back."""
    reserved, covered, _, is_overflow = _lock_batch(session, batch_id)
    part = max(reserved - covered, 0)
    if part:
        session.execute(update(Batch).where(Batch.id == batch_id).values(reserved_tokens=reserved - part))
    if part and not is_overflow:
        given_back = {Budget.reserved_tokens: Budget.reserved_tokens - part}
        session.execute(update(Budget).where(Budget.tenant_id == tenant_id).values(given_back))
    return part


def _lock_batch(session: Session, batch_id: str) -> tuple[int, int, str | None, bool]:
    """Return what a batch has reserved, how much of it covers running lines, its key, and if it overflows; locked."""
    columns = (Batch.reserved_tokens, Batch.covered_tokens, Batch.api_key_id, Batch.priority)
    row = session.execute(select(*columns).where(Batch.id == batch_id).with_for_update(key_share=True)).one()
    return int(row[0]), int(row[1]), row[2], row[3] == Priority.OVERFLOW


def _quota(session: Session, tenant_id: str, *, is_locked: bool = False) -> Quota:
    query = select(*_QUOTA).where(Budget.tenant_id == tenant_id)
    row = session.execute(query.with_for_update(key_share=True) if is_locked else query).one_or_none()
    if row is None:
        raise NotFoundError(f"tenant {tenant_id!r} has no budget; is the tenant id right?")
    return _quota_of(row)


_QUOTA = (
    Budget.limit_tokens, Budget.reserved_tokens, Budget.spent_tokens, Budget.num_window_budgets,
    Budget.overflow_spent_tokens,
)  # fmt: skip


def _quota_of(columns: Sequence[Any]) -> Quota:
    limit, reserved, spent, num_window_budgets, overflow_spent = columns
    return Quota(
        limit=limit,
        reserved=reserved,
        spent=spent,
        num_window_budgets=num_window_budgets,
        overflow_spent=overflow_spent,
    )


def _grow(session: Session, tenant_id: str, tokens: int) -> int | None:
    """Reserve `tokens` more where the limit allows it; return how many window budgets there are, or None."""
    assert tokens >= 0, tokens
    has_room = Budget.limit_tokens.is_(None) | (
        Budget.limit_tokens - Budget.spent_tokens - Budget.reserved_tokens >= tokens
    )
    return session.scalar(
        update(Budget)
        .where(Budget.tenant_id == tenant_id, has_room)
        .values(reserved_tokens=Budget.reserved_tokens + tokens)
        .returning(Budget.num_window_budgets)
    )


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


# One statement, since every flush needs it. What is left of the cover stays reserved.
_SETTLE = text("""
    WITH before AS (
        SELECT id, api_key_id, least(:tokens, greatest(reserved_tokens - (covered_tokens - :uncovered), 0)) AS part
        FROM batch WHERE id = :batch_id FOR NO KEY UPDATE
    ), taken AS (
        UPDATE batch SET reserved_tokens = reserved_tokens - before.part, covered_tokens = covered_tokens - :uncovered
        FROM before WHERE batch.id = before.id RETURNING before.part, before.api_key_id
    )
    UPDATE budget SET
        reserved_tokens = reserved_tokens - CASE WHEN :is_overflow THEN 0 ELSE taken.part END,
        spent_tokens = spent_tokens + CASE WHEN :is_overflow THEN 0 ELSE :tokens END,
        overflow_spent_tokens = overflow_spent_tokens + CASE WHEN :is_overflow THEN :tokens ELSE 0 END,
        committed_tokens = CASE WHEN :is_limited OR :is_overflow THEN committed_tokens
            ELSE greatest(committed_tokens, spent_tokens + reserved_tokens + :tokens - taken.part) END
    FROM taken WHERE tenant_id = :tenant_id AND (:tokens > 0 OR taken.part > 0)
    RETURNING num_window_budgets, taken.api_key_id
""")

# The states are those of the index of live batches: a tenant may have any number of others.
_OTHERS_RUN = text(f"""
    SELECT EXISTS (
        SELECT FROM batch WHERE tenant_id = :id AND covered_tokens > 0
            AND {one_of("state", LIVE_BATCH_STATES)}
    )
""")
