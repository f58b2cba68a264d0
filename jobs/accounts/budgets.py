"""Token budgets of tenants: reserve when a batch is accepted, settle as results arrive, release at the end.

In between, lines are covered before they run: covers.py. Where a tenant has window budgets too, these must also cover
the lines.

Invariants at every commit, except for class overflow: budget.spent = Σ ledger tokens of the tenant, budget.reserved = Σ
batch.reserved_tokens of its live batches; batch.covered_tokens = Σ of its leased chunks and at most
batch.reserved_tokens; and spent + reserved ≤ limit, or ≤ what was committed before that limit was set. Usage of class
overflow is counted separately (`overflow_spent`), and its batches' reservations count against window budgets only. The
budget row is always locked last (chunk → batch → budget).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, bindparam, select, text, update
from sqlalchemy.orm import Session

from jobs.accounts import window_budgets
from jobs.accounts.allowances import Allowance
from jobs.errors import InputError, NotFoundError, OverBudgetError
from jobs.states import BudgetUnit, BudgetWindow, Priority
from jobs.tables import Batch, Budget

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
    """Number of window budgets of the tenant and its keys."""
    overflow_spent: int = 0
    """In class overflow, not counted against the limit."""

    @property
    def available(self) -> int | None:
        """Return what is left; None where unlimited, below 0 where the limit was set below what is committed."""
        return None if self.limit is None else self.limit - self.spent - self.reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A live batch's reservation, in tokens."""

    tokens: int
    covered: int
    """By running lines."""
    key_id: str | None
    is_overflow: bool
    """Not counted in the tenant's budget."""

    @property
    def free(self) -> int:
        """Return what covers no line yet."""
        return self.tokens - self.covered


def quota(session: Session, tenant_id: str) -> Quota:
    """Read a tenant's budget. Raises NotFoundError where there is no such tenant."""
    return _found(session, tenant_id, select(*_QUOTA))


def locked_quota(session: Session, tenant_id: str) -> Quota:
    """Read the budget and lock its row until the transaction ends; after chunk and batch, as everywhere."""
    return _found(session, tenant_id, select(*_QUOTA).with_for_update(key_share=True))


def quotas(session: Session, tenant_ids: Collection[str]) -> dict[str, Quota]:
    """Read the budgets of tenants, by id, in one query."""
    rows = session.execute(_QUOTAS, {"tenant_ids": list(tenant_ids)})
    return {tenant_id: _quota_of(columns) for tenant_id, *columns in rows}


def check_limit(limit_tokens: int | None) -> None:
    """Raise InputError for a negative limit, or one above MAX_LIMIT_TOKENS."""
    if limit_tokens is not None and not 0 <= limit_tokens <= MAX_LIMIT_TOKENS:
        allowed = f"0 to {MAX_LIMIT_TOKENS}, or none for no limit"
        raise InputError(f"limit_tokens is {limit_tokens}; give {allowed}", param="limit_tokens")


def set_limit(session: Session, tenant_id: str, limit_tokens: int | None) -> Quota:
    """Set a tenant's limit in tokens; None makes it unlimited.

    Tokens already spent and reserved may exceed the new limit: they stay, and nothing is added. Where there was no
    limit, lines of leased chunks continue without cover, and their usage is committed too.
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
    """Reserve `tokens` for a key's submit. Raises OverBudgetError with the numbers where the budget is too small.

    With `may_overflow` it returns False and reserves nothing where the tenant's limit is too small. Daily and monthly
    budgets refuse nothing here: batches wait for the next window. One guarded UPDATE decides, so two submits at once
    cannot both take the last tokens. The caller stores the amount in `batch.reserved_tokens` in the same transaction.
    """
    num_window_budgets = grow(session, tenant_id, tokens)
    is_covered = num_window_budgets is not None
    if num_window_budgets is None:
        budget = locked_quota(session, tenant_id)
        assert budget.limit is not None
        if not may_overflow:
            raise OverBudgetError(limit=budget.limit, spent=budget.spent, reserved=budget.reserved, needed=tokens)
        num_window_budgets = budget.num_window_budgets
    if num_window_budgets:
        _check_totals(window_budgets.current(session, tenant_id, key_id), tokens)
    return is_covered


def check_room(session: Session, tenant_id: str, tokens: int, *, key_id: str | None, may_overflow: bool) -> None:
    """Raise the OverBudgetError that `reserve` would raise now; reserves nothing."""
    budget = quota(session, tenant_id)
    if budget.limit is not None and budget.available is not None and tokens > budget.available and not may_overflow:
        raise OverBudgetError(limit=budget.limit, spent=budget.spent, reserved=budget.reserved, needed=tokens)
    _check_totals(_held(session, tenant_id, key_id), tokens)


def _held(session: Session, tenant_id: str, key_id: str | None) -> list[Allowance]:
    return [one for one in window_budgets.allowances(session, tenant_id) if one.key_id in (None, key_id)]


def _check_totals(allowances: Sequence[Allowance], tokens: int) -> None:
    """Raise OverBudgetError where a budget that is never reset is used up, or too small for an estimate."""
    for allowance in allowances:
        if _is_too_small(allowance, tokens):
            raise OverBudgetError(
                limit=allowance.limit,
                spent=allowance.spent,
                reserved=allowance.reserved,
                needed=tokens if allowance.unit is BudgetUnit.TOKENS else 1,
                of_key=allowance.key_id,
                is_money=allowance.unit is BudgetUnit.MONEY,
            )


def has_room(session: Session, tenant_id: str, tokens: int, *, key_id: str | None) -> bool:
    """Return whether `reserve` would succeed now; reserves nothing."""
    available = quota(session, tenant_id).available
    allowances = _held(session, tenant_id, key_id)
    return (available is None or tokens <= available) and not any(_is_too_small(one, tokens) for one in allowances)


def _is_too_small(allowance: Allowance, tokens: int) -> bool:
    needed = tokens if allowance.unit is BudgetUnit.TOKENS else 1
    return allowance.window is BudgetWindow.TOTAL and needed > allowance.left


def settle(
    session: Session,
    batch_id: str,
    tenant_id: str,
    tokens: int,
    *,
    picos: int = 0,
    reading_microseconds: int = 0,
    uncovered: int = 0,
    is_limited: bool = True,
    is_overflow: bool = False,
) -> None:
    """Book `tokens` of newly inserted results as spent, out of the batch's reservation as far as it goes.

    Their cost `picos` counts in window budgets, and their document reading time in the day's. `uncovered` is the cover
    of the ended lines, never less than they used. Lines started while there was no limit (`is_limited` False) had no
    cover: their usage is committed whatever the limit is by now. Overflow never counts against the limit. Call in the
    transaction that inserts the results and their ledger entry.
    """
    assert tokens >= 0, tokens
    values = {
        "batch_id": batch_id,
        "tenant_id": tenant_id,
        "tokens": tokens,
        "reading": reading_microseconds,
        "uncovered": uncovered,
        "is_limited": is_limited,
        "is_overflow": is_overflow,
    }
    booked = session.execute(_SETTLE, values).one_or_none()
    if booked is not None and booked.num_window_budgets and (tokens or picos):
        window_budgets.spend(session, tenant_id, booked.api_key_id, tokens=tokens, picos=picos, is_limited=is_limited)


def release(session: Session, batch: Batch) -> int:
    """Release the rest of a batch's reservation; return the tokens released. Idempotent."""
    session.flush()
    part = release_free(session, batch.id, batch.tenant_id)
    session.refresh(batch, ["reserved_tokens", "covered_tokens"])
    return part


def release_free(session: Session, batch_id: str, tenant_id: str) -> int:
    """Release what a batch has reserved beyond the cover of its running lines; return the tokens released."""
    reservation = lock_reservation(session, batch_id)
    part = reservation.free
    if part:
        session.execute(update(Batch).where(Batch.id == batch_id).values(reserved_tokens=reservation.tokens - part))
    if part and not reservation.is_overflow:
        given_back = {Budget.reserved_tokens: Budget.reserved_tokens - part}
        session.execute(update(Budget).where(Budget.tenant_id == tenant_id).values(given_back))
    return part


def lock_reservation(session: Session, batch_id: str) -> Reservation:
    """Return a batch's reservation, and lock its row until the transaction ends."""
    columns = (Batch.reserved_tokens, Batch.covered_tokens, Batch.api_key_id, Batch.priority)
    row = session.execute(select(*columns).where(Batch.id == batch_id).with_for_update(key_share=True)).one()
    tokens, covered, key_id, priority = row
    return Reservation(tokens=tokens, covered=covered, key_id=key_id, is_overflow=priority == Priority.OVERFLOW)


def grow(session: Session, tenant_id: str, tokens: int) -> int | None:
    """Reserve `tokens` more where the limit allows it; return the number of window budgets, or None."""
    assert tokens >= 0, tokens
    num_window_budgets: int | None = session.scalar(_GROW, {"tenant": tenant_id, "tokens": tokens})
    return num_window_budgets


_GROW = text("""
    UPDATE budget SET reserved_tokens = reserved_tokens + :tokens
    WHERE tenant_id = :tenant AND (limit_tokens IS NULL OR limit_tokens - spent_tokens - reserved_tokens >= :tokens)
    RETURNING num_window_budgets
""")


_QUOTA = (
    Budget.limit_tokens, Budget.reserved_tokens, Budget.spent_tokens, Budget.num_window_budgets,
    Budget.overflow_spent_tokens,
)  # fmt: skip
# Built once, as every view of a batch runs it.
_QUOTAS = select(Budget.tenant_id, *_QUOTA).where(Budget.tenant_id.in_(bindparam("tenant_ids", expanding=True)))


def _quota_of(columns: Sequence[Any]) -> Quota:
    limit, reserved, spent, num_window_budgets, overflow_spent = columns
    return Quota(
        limit=limit,
        reserved=reserved,
        spent=spent,
        num_window_budgets=num_window_budgets,
        overflow_spent=overflow_spent,
    )


def _found(session: Session, tenant_id: str, query: Select[*tuple[Any, ...]]) -> Quota:
    row = session.execute(query.where(Budget.tenant_id == tenant_id)).one_or_none()
    if row is None:
        raise NotFoundError(f"tenant {tenant_id!r} has no budget; is the tenant id right?")
    return _quota_of(row)


# One statement, since every flush needs it. The rest of the cover stays reserved.
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
            ELSE greatest(committed_tokens, spent_tokens + reserved_tokens + :tokens - taken.part) END,
        reading_microseconds = CASE WHEN :reading = 0 OR reading_day = (now() AT TIME ZONE 'UTC')::date
            THEN reading_microseconds ELSE 0 END + :reading,
        reading_day = CASE WHEN :reading = 0 THEN reading_day ELSE (now() AT TIME ZONE 'UTC')::date END
    FROM taken WHERE tenant_id = :tenant_id AND (:tokens > 0 OR taken.part > 0 OR :reading > 0)
    RETURNING num_window_budgets, taken.api_key_id
""")
