"""Tests of the cost of past usage at other prices."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs import served_models
from jobs.accounts import tenants
from jobs.accounts.repricing import Repriced, reprice
from jobs.accounts.usage import Period, period
from jobs.errors import InputError
from jobs.tables import Batch, Tenant
from tests.jobs.chunks.builders import claim_first, flush

Run = Callable[..., Batch]


def repriced(session: Session, asked: Period, tenant_id: str | None = None, **prices: Any) -> list[Repriced]:
    columns = served_models.prices_with(served_models.find_model(session, "m"), **prices)
    return list(reprice(session, "m", columns, asked, tenant_id=tenant_id))


@pytest.fixture
def used(session: Session, run: Run, tenant: Tenant) -> Tenant:
    """Two tenants with 10 prompt tokens, 2 of them cached, and 6 answer tokens each; the second in class bulk."""
    other = tenants.create_tenant(session, "zeta")
    flush(session, claim_first(session, run(4)), [0, 2])
    flush(session, claim_first(session, run(4, tenant_id=other.id, priority="bulk")), [0, 2])
    return other


def test_other_prices_are_those_of_each_class_and_of_cached_tokens(session: Session, used: Tenant) -> None:
    prices: dict[str, Any] = {
        "input_price_picos": 100, "cached_input_price_picos": 10, "bulk_price_percent": 50,
    }  # fmt: skip
    first, second = repriced(session, period(None, None), **prices)
    assert (first.tenant, second.tenant) == ("acme", "zeta")
    assert (first.num_results, first.input_tokens, first.cached_tokens, first.output_tokens) == (2, 10, 2, 6)
    assert (first.billed_picos, second.billed_picos) == (22_000_000, 22_000_000)
    assert first.repriced_picos == 8 * 100 + 2 * 10 + 6 * 2_000_000
    assert second.repriced_picos == 8 * 50 + 2 * 5 + 6 * 1_000_000
    assert [part.tenant for part in repriced(session, period(None, None), used.id)] == ["zeta"]


def test_at_the_prices_of_then_the_past_costs_what_was_billed(session: Session, used: Tenant) -> None:
    served_models.set_prices(session, "m", input_price_picos=9, output_price_picos=9)
    then: dict[str, Any] = {"input_price_picos": 1_000_000, "output_price_picos": 2_000_000}
    assert all(part.repriced_picos == part.billed_picos for part in repriced(session, period(None, None), **then))
    assert [part.repriced_picos for part in repriced(session, period(None, None))] == [16 * 9] * 2


def test_days_before_and_after_are_left_out(session: Session, used: Tenant) -> None:
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    assert repriced(session, Period(since=yesterday, until=yesterday)) == []
    session.execute(text("UPDATE ledger SET created_at = created_at - interval '1 day' WHERE priority = 'bulk'"))
    assert [part.tenant for part in repriced(session, Period(since=yesterday, until=yesterday))] == ["zeta"]


def test_prices_that_do_not_fit_together_are_refused(session: Session, used: Tenant) -> None:
    with pytest.raises(InputError, match="give them at most the price of these"):
        repriced(session, period(None, None), input_price_picos=1, cached_input_price_picos=2)
