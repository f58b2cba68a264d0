"""Token budgets of tenants: reserve when a batch is accepted, cover lines before they run, settle as results arrive,
release at the end.

Holds at every commit: budget.spent = Σ ledger tokens of the tenant, budget.reserved = Σ batch.reserved_tokens of its
live batches, batch.covered_tokens = Σ of its leased chunks and at most batch.reserved_tokens; and spent + reserved ≤
limit, or ≤ what was committed before that limit held. The budget row is always the last one waited for (chunk → batch
→ budget).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select, text, update
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
        """Return what is left, None where it is unlimited; below 0 where the limit was set below what is committed."""
        return None if self.limit is None else self.limit - self.spent - self.reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """Which of some lines may run."""

    fits: Sequence[bool]
    tokens: int
    """Those of the lines that fit."""
    quota: Quota | None = None
    """The budget that some did not fit into."""
    others_run: bool = False
    """That other lines of the tenant are covered: some of their tokens may come back."""


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


def reserve(session: Session, tenant_id: str, tokens: int) -> None:
    """Set `tokens` aside. Raises OverBudgetError with the numbers where the budget does not cover them.

    One guarded UPDATE decides, so two submits at once cannot both take the last tokens. The caller stores the amount
    in `batch.reserved_tokens` in the same transaction.
    """
    if not _grow(session, tenant_id, tokens):
        found = quota(session, tenant_id)
        assert found.limit is not None
        raise OverBudgetError(limit=found.limit, spent=found.spent, reserved=found.reserved, needed=tokens)


def cover(session: Session, batch_id: str, tenant_id: str, costs: Sequence[int]) -> Covered:
    """Cover lines of a batch before they run, each with the most that it may use, in this order while they fit.

    Takes what the batch has reserved for lines that do not run yet, then what the budget has left. The caller stores
    `tokens` in `chunk.covered_tokens` in the same transaction.
    """
    reserved, covered = _lock_batch(session, batch_id)
    free, wanted = max(reserved - covered, 0), sum(costs)
    found = Covered(fits=[True] * len(costs), tokens=wanted)
    if wanted > free and not _grow(session, tenant_id, wanted - free):
        found = _what_fits(session, tenant_id, costs, free=free)
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
    session: Session, batch_id: str, tenant_id: str, tokens: int, *, uncovered: int = 0, is_limited: bool = True
) -> None:
    """Book `tokens` of freshly inserted results as spent, out of the batch's reservation as far as it reaches.

    `uncovered` is the cover of the lines that have ended, which is never less than they used. Lines that were begun
    while there was no limit (`is_limited` False) had none: what they use is committed, whatever limit there is by now.
    Belongs in the transaction that inserts the results and their ledger entry.
    """
    assert tokens >= 0, tokens
    values = {
        "batch_id": batch_id,
        "tenant_id": tenant_id,
        "tokens": tokens,
        "uncovered": uncovered,
        "is_limited": is_limited,
    }
    session.execute(_SETTLE, values)


def release(session: Session, batch: Batch) -> int:
    """Give back what is left of a batch's reservation; return the tokens given back. Repeating it does nothing."""
    session.flush()
    part = release_free(session, batch.id, batch.tenant_id)
    session.refresh(batch, ["reserved_tokens", "covered_tokens"])
    return part


def release_free(session: Session, batch_id: str, tenant_id: str) -> int:
    """Give back what a batch has reserved beyond the cover of its running lines; return the tokens given back."""
    reserved, covered = _lock_batch(session, batch_id)
    part = max(reserved - covered, 0)
    if part:
        session.execute(update(Batch).where(Batch.id == batch_id).values(reserved_tokens=reserved - part))
        given_back = {Budget.reserved_tokens: Budget.reserved_tokens - part}
        session.execute(update(Budget).where(Budget.tenant_id == tenant_id).values(given_back))
    return part


def _lock_batch(session: Session, batch_id: str) -> tuple[int, int]:
    """Return what a batch has reserved and how much of it covers running lines, locked."""
    query = select(Batch.reserved_tokens, Batch.covered_tokens).where(Batch.id == batch_id)
    row = session.execute(query.with_for_update(key_share=True)).one()
    return int(row[0]), int(row[1])


def _quota(session: Session, tenant_id: str, *, is_locked: bool = False) -> Quota:
    query = select(Budget.limit_tokens, Budget.reserved_tokens, Budget.spent_tokens).where(
        Budget.tenant_id == tenant_id
    )
    row = session.execute(query.with_for_update(key_share=True) if is_locked else query).one_or_none()
    if row is None:
        raise NotFoundError(f"tenant {tenant_id!r} has no budget; is the tenant id right?")
    return Quota(limit=row[0], reserved=row[1], spent=row[2])


def _grow(session: Session, tenant_id: str, tokens: int) -> bool:
    """Reserve `tokens` more where the limit allows it."""
    assert tokens >= 0, tokens
    has_room = Budget.limit_tokens.is_(None) | (
        Budget.limit_tokens - Budget.spent_tokens - Budget.reserved_tokens >= tokens
    )
    grown = session.scalar(
        update(Budget)
        .where(Budget.tenant_id == tenant_id, has_room)
        .values(reserved_tokens=Budget.reserved_tokens + tokens)
        .returning(Budget.tenant_id)
    )
    return grown is not None


def _what_fits(session: Session, tenant_id: str, costs: Sequence[int], *, free: int) -> Covered:
    """Choose line by line what fits into `free` and the rest of the budget, and reserve what it takes of the latter."""
    found = _quota(session, tenant_id, is_locked=True)
    fits, tokens = fitting(costs, None if found.available is None else free + max(found.available, 0))
    if tokens > free:
        grown = _grow(session, tenant_id, tokens - free)
        assert grown, "the budget is locked, and this fits"
    return Covered(
        fits=fits, tokens=tokens, quota=found, others_run=bool(session.scalar(_OTHERS_RUN, {"id": tenant_id}))
    )


def fitting(costs: Sequence[int], room: int | None) -> tuple[list[bool], int]:
    """Return which lines fit into `room` together, and their sum; a smaller one may fit after one that does not.

    `room` None is without end.
    """
    fits, taken = [], 0
    for cost in costs:
        fits.append(room is None or taken + cost <= room)
        taken += cost if fits[-1] else 0
    return fits, taken


# One statement, since every flush needs it. What is left of the cover stays reserved.
_SETTLE = text("""
    WITH before AS (
        SELECT id, least(:tokens, greatest(reserved_tokens - (covered_tokens - :uncovered), 0)) AS part
        FROM batch WHERE id = :batch_id FOR NO KEY UPDATE
    ), taken AS (
        UPDATE batch SET reserved_tokens = reserved_tokens - before.part, covered_tokens = covered_tokens - :uncovered
        FROM before WHERE batch.id = before.id RETURNING before.part
    )
    UPDATE budget SET reserved_tokens = reserved_tokens - taken.part, spent_tokens = spent_tokens + :tokens,
        committed_tokens = CASE WHEN :is_limited THEN committed_tokens
            ELSE greatest(committed_tokens, spent_tokens + reserved_tokens + :tokens - taken.part) END
    FROM taken WHERE tenant_id = :tenant_id AND (:tokens > 0 OR taken.part > 0)
""")

# The states are those of the index of live batches: a tenant may have any number of others.
_OTHERS_RUN = text("""
    SELECT EXISTS (
        SELECT FROM batch WHERE tenant_id = :id AND covered_tokens > 0
            AND state IN ('validating', 'in_progress', 'finalizing', 'cancelling')
    )
""")
