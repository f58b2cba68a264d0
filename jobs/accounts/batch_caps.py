"""Caps of one batch in tokens or money: what the pipeline run it belongs to has left.

Nothing is reserved for a cap: only used tokens and the cover of running lines count against it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.accounts.allowances import Allowance
from jobs.states import BudgetUnit, BudgetWindow

TOKENS_LEFT = """
    CASE WHEN batch.cap_tokens IS NOT NULL THEN greatest(
        batch.cap_tokens - batch.input_tokens - batch.output_tokens - batch.covered_tokens, 0
    ) END
"""
"""Tokens or money of a batch, as SQL; null where it has no cap."""
PICOS_LEFT = """
    CASE WHEN batch.cap_picos IS NOT NULL THEN greatest(
        batch.cap_picos - batch.cost_picos - (
            SELECT coalesce(sum(capped.covered_picos), 0) FROM chunk AS capped
            WHERE capped.batch_id = batch.id AND capped.state = 'leased'
        ), 0
    ) END
"""
IS_CAPPED = "(batch.cap_tokens IS NOT NULL OR batch.cap_picos IS NOT NULL)"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCap(Allowance):
    """The current state of one cap of a batch."""

    def described(self, currency: str) -> str:
        return (
            f"its run has {self.amount(self.limit, currency)} left for this batch, {self.amount(self.spent, currency)} "
            f"spent and {self.amount(self.reserved, currency)} reserved; change the pipeline's caps"
        )


def caps_of(session: Session, batch_id: str) -> list[BatchCap]:
    """Return the caps of a locked batch."""
    row = session.execute(_CAPS, {"batch_id": batch_id}).one_or_none()
    if row is None:
        return []
    caps = [(BudgetUnit.TOKENS, row.cap_tokens, row.tokens_left), (BudgetUnit.MONEY, row.cap_picos, row.picos_left)]
    return [
        BatchCap(
            budget_id=batch_id,
            key_id=None,
            unit=unit,
            window=BudgetWindow.TOTAL,
            time_zone="UTC",
            limit=int(cap),
            spent=int(cap - left),
            reserved=0,
            warn_percent=None,
            turns_at=None,
        )
        for unit, cap, left in caps
        if cap is not None
    ]


_CAPS = text(f"""
    SELECT cap_tokens, cap_picos, {TOKENS_LEFT} AS tokens_left, {PICOS_LEFT} AS picos_left
    FROM batch WHERE id = :batch_id AND {IS_CAPPED}
""")
