"""Budget left for further lines of a batch, by its tenant's budgets and its own cap, as SQL."""

from __future__ import annotations

from jobs.accounts.batch_caps import PICOS_LEFT, TOKENS_LEFT
from jobs.states import BudgetUnit


def _room_of_windows(unit: BudgetUnit, covered: str) -> str:
    """Return the SQL of the least that is left in the window budgets that apply to a batch; null where there are none.

    A window that is over counts as reset: covering the next lines resets it.
    """
    return f"""
        CASE WHEN budget.num_window_budgets > 0 THEN (
            SELECT greatest(min(
                window_budget.limit_amount
                - CASE WHEN window_budget.window_end <= now() THEN 0 ELSE window_budget.spent_amount END
                - (
                    SELECT coalesce(sum(other.{covered}), 0) FROM chunk AS other
                        JOIN batch AS of_other ON of_other.id = other.batch_id
                    WHERE other.state = 'leased' AND other.tenant_id = window_budget.tenant_id AND (
                        window_budget.api_key_id IS NULL OR of_other.api_key_id = window_budget.api_key_id
                    )
                )
            ), CASE WHEN count(*) > 0 THEN 0 END)
            FROM window_budget WHERE window_budget.tenant_id = batch.tenant_id AND window_budget.unit = '{unit.value}'
                AND (window_budget.api_key_id IS NULL OR window_budget.api_key_id = batch.api_key_id)
        ) END
    """


# Null where there is no limit.
_ROOM = f"""
    SELECT least(
        CASE WHEN budget.limit_tokens IS NOT NULL AND batch.priority <> 'overflow' THEN
            greatest(budget.limit_tokens - budget.spent_tokens - budget.reserved_tokens, 0)
            + greatest(batch.reserved_tokens - batch.covered_tokens, 0)
        END,
        {_room_of_windows(BudgetUnit.TOKENS, "covered_tokens")}, {TOKENS_LEFT}
    ) AS tokens, least({_room_of_windows(BudgetUnit.MONEY, "covered_picos")}, {PICOS_LEFT}) AS picos
"""
WITH_ROOM = f"batch JOIN budget ON budget.tenant_id = batch.tenant_id CROSS JOIN LATERAL ({_ROOM}) AS room"
