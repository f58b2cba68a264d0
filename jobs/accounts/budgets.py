"""Token budgets of tenants: reserve when a batch is accepted, settle as results arrive, release at the end.

Holds at every commit: budget.spent = Σ ledger tokens of the tenant, budget.reserved = Σ batch.reserved_tokens of its
live batches. The budget row is always the last one locked (chunk → batch → budget).
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from jobs.errors import InputError, NotFoundError, OverBudgetError
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

    @property
    def available(self) -> int | None:
        """Return what is left, None where it is unlimited; below 0 when results used more than was estimated."""
        return None if self.limit is None else self.limit - self.spent - self.reserved


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
    row = session.execute(
        select(Budget.limit_tokens, Budget.reserved_tokens, Budget.spent_tokens).where(Budget.tenant_id == tenant_id)
    ).one_or_none()
    if row is None:
        raise NotFoundError(f"tenant {tenant_id!r} has no budget; is the tenant id right?")
    return Quota(limit=row[0], reserved=row[1], spent=row[2])


def check_limit(limit_tokens: int | None) -> None:
    """Raise InputError for a limit below zero, or one that nobody reaches."""
    if limit_tokens is not None and not 0 <= limit_tokens <= MAX_LIMIT_TOKENS:
        allowed = f"0 to {MAX_LIMIT_TOKENS}, or none for no limit"
        raise InputError(f"limit_tokens is {limit_tokens}; give {allowed}", param="limit_tokens")


def set_limit(session: Session, tenant_id: str, limit_tokens: int | None) -> Quota:
    """Set a tenant's limit in tokens; None makes it unlimited. Work already accepted keeps its reservation."""
    check_limit(limit_tokens)
    session.execute(update(Budget).where(Budget.tenant_id == tenant_id).values(limit_tokens=limit_tokens))
    return quota(session, tenant_id)


def reserve(session: Session, tenant_id: str, tokens: int) -> None:
    """Set `tokens` aside. Raises OverBudgetError with the numbers where the budget does not cover them.

    One guarded UPDATE decides, so two submits at once cannot both take the last tokens. The caller stores the amount
    in `batch.reserved_tokens` in the same transaction.
    """
    assert tokens >= 0, tokens
    covered = Budget.limit_tokens.is_(None) | (
        Budget.limit_tokens - Budget.spent_tokens - Budget.reserved_tokens >= tokens
    )
    reserved = session.scalar(
        update(Budget)
        .where(Budget.tenant_id == tenant_id, covered)
        .values(reserved_tokens=Budget.reserved_tokens + tokens)
        .returning(Budget.tenant_id)
    )
    if reserved is None:
        found = quota(session, tenant_id)
        assert found.limit is not None
        raise OverBudgetError(limit=found.limit, spent=found.spent, reserved=found.reserved, needed=tokens)


def settle(session: Session, batch_id: str, tenant_id: str, tokens: int) -> None:
    """Book `tokens` of freshly inserted results as spent, out of the batch's reservation as far as it reaches.

    Belongs in the transaction that inserts the results and their ledger entry.
    """
    assert tokens >= 0, tokens
    part = min(tokens, _lock_reservation(session, batch_id))
    _deduct(session, batch_id, tenant_id, part=part, spent=tokens)


def release(session: Session, batch: Batch) -> int:
    """Give back what is left of a batch's reservation; return the tokens given back. Repeating it does nothing."""
    part = _lock_reservation(session, batch.id)
    _deduct(session, batch.id, batch.tenant_id, part=part, spent=0)
    return part


def _lock_reservation(session: Session, batch_id: str) -> int:
    left = session.scalar(select(Batch.reserved_tokens).where(Batch.id == batch_id).with_for_update(key_share=True))
    assert left is not None, f"no batch {batch_id}"
    return left


def _deduct(session: Session, batch_id: str, tenant_id: str, *, part: int, spent: int) -> None:
    if part:
        session.execute(update(Batch).where(Batch.id == batch_id).values(reserved_tokens=Batch.reserved_tokens - part))
    if part or spent:
        session.execute(
            update(Budget)
            .where(Budget.tenant_id == tenant_id)
            .values(reserved_tokens=Budget.reserved_tokens - part, spent_tokens=Budget.spent_tokens + spent)
        )
