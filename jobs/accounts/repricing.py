"""Past usage at other prices: exact, from the ledger's tokens. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.accounts.prices import Prices
from jobs.accounts.usage import Period


@dataclass(frozen=True, slots=True, kw_only=True)
class Repriced:
    """A tenant's usage of a model."""

    tenant: str
    """Its name."""
    num_results: int
    input_tokens: int
    """Including cached ones."""
    cached_tokens: int
    output_tokens: int
    billed_picos: int
    repriced_picos: int


def reprice(
    session: Session, model: str, columns: Mapping[str, Any], period: Period, *, tenant_id: str | None = None
) -> Sequence[Repriced]:
    """Return what a model's lines in whole UTC days were billed and what they would cost, by tenant and its name.

    `columns` are those of `prices.MODEL_COLUMNS`.
    """
    values = {"model": model, "since": period.since, "until": period.until, "tenant_id": tenant_id}
    parts_by_tenant: dict[str, Repriced] = {}
    for row in session.execute(_SUMS, values):
        tokens = {name: int(getattr(row, name)) for name in ("input_tokens", "cached_tokens", "output_tokens")}
        own = Repriced(
            tenant=row.tenant,
            num_results=int(row.num_results),
            billed_picos=int(row.billed_picos),
            repriced_picos=Prices.of(columns, row.priority).cost_picos(**tokens),
            **tokens,
        )
        parts_by_tenant[row.tenant] = (
            total([parts_by_tenant[row.tenant], own]) if row.tenant in parts_by_tenant else own
        )
    return list(parts_by_tenant.values())


def total(parts: Sequence[Repriced]) -> Repriced:
    """Return the sum of a non-empty list, under its first tenant."""
    names = ("num_results", "input_tokens", "cached_tokens", "output_tokens", "billed_picos", "repriced_picos")
    return replace(parts[0], **{name: sum(getattr(part, name) for part in parts) for name in names})


_SUMS = text("""
    SELECT tenant.name AS tenant, ledger.priority,
        sum(ledger.num_results) AS num_results, sum(ledger.input_tokens) AS input_tokens,
        sum(ledger.cached_tokens) AS cached_tokens, sum(ledger.output_tokens) AS output_tokens,
        sum(ledger.cost_picos) AS billed_picos
    FROM ledger JOIN tenant ON tenant.id = ledger.tenant_id
    WHERE ledger.model = :model AND (CAST(:tenant_id AS text) IS NULL OR ledger.tenant_id = :tenant_id)
        AND ledger.created_at >= CAST(:since AS date)::timestamp AT TIME ZONE 'UTC'
        AND ledger.created_at < (CAST(:until AS date) + 1)::timestamp AT TIME ZONE 'UTC'
    GROUP BY 1, 2 ORDER BY 1, 2
""")
