"""Compare budgets with the batches that reserve from them, the ledger, and their limits."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.audit.findings import Finding
from jobs.counted import counted


def token_budgets(session: Session) -> Iterator[Finding]:
    """Yield findings about the token budgets of all tenants."""
    for row in session.execute(_BUDGETS):
        if row.reserved_tokens != row.batch_tokens:
            reserved = counted(row.reserved_tokens, "token")
            message = f"the budget reserves {reserved} and its batches reserve {row.batch_tokens}"
            yield Finding(subject=row.tenant_id, message=message)
        if row.spent_tokens != row.ledger_tokens:
            message = f"the budget has {counted(row.spent_tokens, 'token')} spent and the ledger {row.ledger_tokens}"
            yield Finding(subject=row.tenant_id, message=message)
        if row.overflow_spent_tokens != row.overflow_ledger_tokens:
            message = (
                f"the budget has {counted(row.overflow_spent_tokens, 'token')} of class overflow spent and the ledger "
                f"{row.overflow_ledger_tokens}"
            )
            yield Finding(subject=row.tenant_id, message=message)
        if row.is_over_limit:
            message = (
                f"the budget has {counted(row.spent_tokens, 'token')} spent and {row.reserved_tokens} reserved, "
                f"and its limit is {row.limit_tokens}; {row.committed_tokens} were committed before it"
            )
            yield Finding(subject=row.tenant_id, message=message)


def window_budgets(session: Session) -> Iterator[Finding]:
    """Yield findings about budgets of days, months and keys whose window is not over."""
    for row in session.execute(_WINDOW_BUDGETS):
        whose = f"the budget {row.id} ({row.unit})"
        if row.spent_amount != row.ledger_amount:
            message = f"{whose} has {row.spent_amount} spent and the ledger {row.ledger_amount}"
            yield Finding(subject=row.tenant_id, message=message)
        if row.spent_amount + row.reserved_amount > max(row.limit_amount, row.committed_amount):
            message = (
                f"{whose} has {row.spent_amount} spent and {row.reserved_amount} reserved, and its limit is "
                f"{row.limit_amount}; {row.committed_amount} were committed before it"
            )
            yield Finding(subject=row.tenant_id, message=message)


_BUDGETS = text("""
    SELECT budget.tenant_id, budget.reserved_tokens, budget.spent_tokens, budget.limit_tokens, budget.committed_tokens,
        coalesce(spent_tokens + reserved_tokens > greatest(limit_tokens, committed_tokens), FALSE)
            AND limit_tokens IS NOT NULL AS is_over_limit,
        (SELECT coalesce(sum(reserved_tokens), 0) FROM batch
            WHERE batch.tenant_id = budget.tenant_id AND batch.priority <> 'overflow') AS batch_tokens,
        entries.tokens - entries.overflow_tokens AS ledger_tokens,
        overflow_spent_tokens, entries.overflow_tokens AS overflow_ledger_tokens
    FROM budget CROSS JOIN LATERAL (
        SELECT coalesce(sum(input_tokens + output_tokens), 0) AS tokens,
            coalesce(sum(input_tokens + output_tokens) FILTER (WHERE priority = 'overflow'), 0) AS overflow_tokens
        FROM ledger WHERE ledger.tenant_id = budget.tenant_id
    ) AS entries ORDER BY budget.tenant_id
""")

# In pico-units for money; reserved is the cover of running lines. A window that is over but not reset yet belongs to
# the past: its entries may be rolled up by now.
_WINDOW_BUDGETS = text("""
    SELECT window_budget.id, window_budget.tenant_id, unit, limit_amount, spent_amount, committed_amount,
        (SELECT coalesce(sum(CASE unit WHEN 'tokens' THEN chunk.covered_tokens ELSE chunk.covered_picos END), 0)
            FROM chunk JOIN batch ON batch.id = chunk.batch_id
            WHERE chunk.state = 'leased' AND chunk.tenant_id = window_budget.tenant_id
                AND (window_budget.api_key_id IS NULL OR batch.api_key_id = window_budget.api_key_id)
        ) AS reserved_amount,
        (SELECT coalesce(round(sum(CASE unit WHEN 'tokens' THEN ledger.input_tokens + ledger.output_tokens
                ELSE ledger.cost_picos END)), 0)
            FROM ledger JOIN batch ON batch.id = ledger.batch_id
            WHERE ledger.tenant_id = window_budget.tenant_id
                AND (window_budget.api_key_id IS NULL OR batch.api_key_id = window_budget.api_key_id)
                AND ledger.created_at >= coalesce(window_start, '-infinity')
                AND ledger.created_at < coalesce(window_end, 'infinity')
        ) AS ledger_amount
    FROM window_budget WHERE window_end IS NULL OR window_end > now()
    ORDER BY window_budget.tenant_id, window_budget.id
""")
