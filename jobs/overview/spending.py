"""Usage of each tenant in the last days, from the points of plots, and what servers were paid, also in vain.

Bounded, however long the ledger is: the entries with waste, and with payments outside the house, have indexes of
their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.overview.plots import DAY

DAYS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSpending:
    """A tenant with usage."""

    name: str
    input_tokens: int
    output_tokens: int
    cost_picos: int


def by_tenant(session: Session) -> Sequence[TenantSpending]:
    """Return the tenants with usage today and in the DAYS - 1 days before, by UTC, highest usage first."""
    return [
        TenantSpending(
            name=row.name,
            input_tokens=int(row.input_tokens),
            output_tokens=int(row.output_tokens),
            cost_picos=int(row.cost_picos),
        )
        for row in session.execute(_BY_TENANT, {"seconds": DAY, "days": DAYS})
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWaste:
    """Tokens of a model's server that were paid for and thrown away."""

    model: str
    input_tokens: int
    output_tokens: int


def wasted_by_model(session: Session) -> Sequence[ModelWaste]:
    """Return the models of whose servers answers were thrown away in the last DAYS days, highest waste first."""
    return [
        ModelWaste(model=row.model, input_tokens=int(row.input_tokens), output_tokens=int(row.output_tokens))
        for row in session.execute(_WASTED, {"days": DAYS})
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpill:
    """What servers outside the house were paid for a model."""

    model: str
    num_results: int
    input_tokens: int
    """Of the answers that were used, and billed to tenants."""
    output_tokens: int
    picos: int
    """For all answers, those that were thrown away included."""


def spilled_by_model(session: Session) -> Sequence[ModelSpill]:
    """Return the models whose lines left the house in the last DAYS days, most expensive first."""
    return [
        ModelSpill(
            model=row.model,
            num_results=int(row.num_results),
            input_tokens=int(row.input_tokens),
            output_tokens=int(row.output_tokens),
            picos=int(row.picos),
        )
        for row in session.execute(_SPILLED, {"days": DAYS})
    ]


_SPILLED = text("""
    SELECT model, sum(num_results) AS num_results, sum(input_tokens) AS input_tokens,
        sum(output_tokens) AS output_tokens, sum(spill_picos) AS picos
    FROM ledger WHERE spill_picos IS NOT NULL AND created_at > now() - make_interval(days => :days)
    GROUP BY model ORDER BY sum(spill_picos) DESC, model
""")

_WASTED = text("""
    SELECT model, sum(wasted_input_tokens) AS input_tokens, sum(wasted_output_tokens) AS output_tokens FROM ledger
    WHERE (wasted_input_tokens > 0 OR wasted_output_tokens > 0) AND created_at > now() - make_interval(days => :days)
    GROUP BY model ORDER BY sum(wasted_input_tokens + wasted_output_tokens) DESC, model
""")

_BY_TENANT = text("""
    SELECT tenant.name,
        coalesce(sum(value) FILTER (WHERE plot_point.name = 'input_tokens'), 0) AS input_tokens,
        coalesce(sum(value) FILTER (WHERE plot_point.name = 'output_tokens'), 0) AS output_tokens,
        coalesce(sum(value) FILTER (WHERE plot_point.name = 'cost'), 0) AS cost_picos
    FROM plot_point JOIN tenant ON tenant.id = plot_point.tenant_id
    WHERE seconds = :seconds AND at > now() - make_interval(days => :days)
    GROUP BY tenant.id, tenant.name
    ORDER BY sum(value) FILTER (WHERE plot_point.name <> 'cost') DESC NULLS LAST, tenant.name
""")
