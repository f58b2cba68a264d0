"""Token budgets of tenants: reserve when a batch is accepted, settle as results arrive, release at the end.

Between them lines are covered before they run: covers.py. Where a tenant has window budgets too, lines are covered by
them as well.

Holds at every commit, class overflow apart: budget.spent = Σ ledger tokens of the tenant, budget.reserved = Σ
batch.reserved_tokens of its live batches; batch.covered_tokens = Σ of its leased chunks and at most
batch.reserved_tokens; and spent + reserved ≤ limit, or ≤ what was committed before that limit held. What class overflow
uses is counted beside it (`overflow_spent`), and what its batches reserve holds of window budgets alone. The budget row
is always the last one waited for (chunk → batch → budget).
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
    """That the tenant and its keys have beside it."""
    overflow_spent: int = 0
    """In class overflow, which does not count against the limit."""

    @property
    def available(self) -> int | None:
        """Return what is left, None where it is unlimited; below 0 where the limit was set below what is committed."""
        return None if self.limit is None else self.limit - self.spent - self.reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What a live batch has reserved, in tokens."""

    tokens: int
    covered: int
    """By lines that run."""
    key_id: str | None
    is_overflow: bool
    """Then the tenant's budget knows nothing of it."""

    @property
    def free(self) -> int:
        """Return what covers no line yet."""
        return self.tokens - self.covered


def quota(session: Session, tenant_id: str) -> Quota:
    """Read a tenant's budget. Raises NotFoundError where there is no such tenant."""
    return _found(session, tenant_id, select(*_QUOTA))


def locked_quota(session: Session, tenant_id: str) -> Quota:
    """Read the same and lock its row until the transaction ends; after the chunk and the batch, as everywhere."""
    return _found(session, tenant_id, select(*_QUOTA).with_for_update(key_share=True))


def quotas(session: Session, tenant_ids: Collection[str]) -> dict[str, Quota]:
    """Read the budgets of tenants, by their ids, in one query."""
    rows = session.execute(_QUOTAS, {"tenant_ids": list(tenant_ids)})
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
    num_window_budgets = grow(session, tenant_id, tokens)
    is_covered = num_window_budgets is not None
    if num_window_budgets is None:
        found = locked_quota(session, tenant_id)
        assert found.limit is not None
        if not may_overflow:
            raise OverBudgetError(limit=found.limit, spent=found.spent, reserved=found.reserved, needed=tokens)
        num_window_budgets = found.num_window_budgets
    if num_window_budgets:
        _check_totals(window_budgets.current(session, tenant_id, key_id), tokens)
    return is_covered


def check_room(session: Session, tenant_id: str, tokens: int, *, key_id: str | None, may_overflow: bool) -> None:
    """Raise the OverBudgetError that `reserve` would raise now; reserves nothing."""
    found = quota(session, tenant_id)
    if found.limit is not None and found.available is not None and tokens > found.available and not may_overflow:
        raise OverBudgetError(limit=found.limit, spent=found.spent, reserved=found.reserved, needed=tokens)
    _check_totals(_held(session, tenant_id, key_id), tokens)


def _held(session: Session, tenant_id: str, key_id: str | None) -> list[Allowance]:
    return [one for one in window_budgets.allowances(session, tenant_id) if one.key_id in (None, key_id)]


def _check_totals(allowances: Sequence[Allowance], tokens: int) -> None:
    """Raise OverBudgetError where a budget that never begins anew is used up, or has no room for an estimate."""
    for found in allowances:
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
    held = _held(session, tenant_id, key_id)
    return (available is None or tokens <= available) and not any(_is_too_small(one, tokens) for one in held)


def _is_too_small(found: Allowance, tokens: int) -> bool:
    needed = tokens if found.unit is BudgetUnit.TOKENS else 1
    return found.window is BudgetWindow.TOTAL and needed > found.left


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
    """Book `tokens` of freshly inserted results as spent, out of the batch's reservation as far as it reaches.

    They cost `picos`, which window budgets count, and took readers of documents so long, which counts for the day.
    `uncovered` is the cover of the lines that have ended, which is never
    less than they used. Lines that were begun while there was no limit (`is_limited` False) had none: what they use is
    committed, whatever limit there is by now; what overflows never counts against it. Belongs in the transaction that
    inserts the results and their ledger entry.
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
    """Give back what is left of a batch's reservation; return the tokens given back. Repeating it does nothing."""
    session.flush()
    part = release_free(session, batch.id, batch.tenant_id)
    session.refresh(batch, ["reserved_tokens", "covered_tokens"])
    return part


def release_free(session: Session, batch_id: str, tenant_id: str) -> int:
    """Give back what a batch has reserved beyond the cover of its running lines; return the tokens given back."""
    reservation = lock_reservation(session, batch_id)
    part = reservation.free
    if part:
        session.execute(update(Batch).where(Batch.id == batch_id).values(reserved_tokens=reservation.tokens - part))
    if part and not reservation.is_overflow:
        given_back = {Budget.reserved_tokens: Budget.reserved_tokens - part}
        session.execute(update(Budget).where(Budget.tenant_id == tenant_id).values(given_back))
    return part


def lock_reservation(session: Session, batch_id: str) -> Reservation:
    """Return what a batch has reserved, and lock its row until the transaction ends."""
    columns = (Batch.reserved_tokens, Batch.covered_tokens, Batch.api_key_id, Batch.priority)
    row = session.execute(select(*columns).where(Batch.id == batch_id).with_for_update(key_share=True)).one()
    tokens, covered, key_id, priority = row
    return Reservation(tokens=tokens, covered=covered, key_id=key_id, is_overflow=priority == Priority.OVERFLOW)


def grow(session: Session, tenant_id: str, tokens: int) -> int | None:
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


_QUOTA = (
    Budget.limit_tokens, Budget.reserved_tokens, Budget.spent_tokens, Budget.num_window_budgets,
    Budget.overflow_spent_tokens,
)  # fmt: skip
# Made once, as all that shows a batch asks it.
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
            ELSE greatest(committed_tokens, spent_tokens + reserved_tokens + :tokens - taken.part) END,
        reading_microseconds = CASE WHEN :reading = 0 OR reading_day = (now() AT TIME ZONE 'UTC')::date
            THEN reading_microseconds ELSE 0 END + :reading,
        reading_day = CASE WHEN :reading = 0 THEN reading_day ELSE (now() AT TIME ZONE 'UTC')::date END
    FROM taken WHERE tenant_id = :tenant_id AND (:tokens > 0 OR taken.part > 0 OR :reading > 0)
    RETURNING num_window_budgets, taken.api_key_id
""")
