"""Tests of usage added up by day, model, key and batch: the sums are the same in every grouping."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import tenants
from jobs.accounts.keys import create_key
from jobs.accounts.money import in_currency, rounded_micros
from jobs.accounts.usage import MAX_DAYS, GroupBy, Period, Usage, parse_group_by, period, read_usage
from jobs.errors import InputError
from jobs.retention import history
from jobs.tables import Ledger, Tenant

Make = Callable[..., Any]
DAY = date(2026, 3, 1)
ALL = Period(since=DAY, until=DAY + timedelta(days=30))


@pytest.fixture
def entries(session: Session, tenant: Tenant, make_batch: Make) -> list[str]:
    """Insert usage of three batches of two keys and two models on three days; return the keys' ids."""
    keys = [create_key(session, tenant.id)[0].id for _ in range(2)]
    batches = [make_batch(state="completed", api_key_id=key_id).id for key_id in (*keys, None)]
    for number in range(12):
        day = DAY + timedelta(days=number % 3)
        session.add(
            Ledger(
                tenant_id=tenant.id, batch_id=batches[number % 3 if number < 9 else 0], chunk_id=number, fence=1,
                flush_no=0, model="small" if number % 2 else "large", num_results=1, input_tokens=100 + number,
                cached_tokens=number, output_tokens=10, cost_picos=10**6 * number + 1, worker_microseconds=number,
                num_truncated=number % 2, priority="normal", input_price_picos=0, output_price_picos=0,
                created_at=f"{day} 23:59:59.9+00",
            )
        )  # fmt: skip
    session.commit()
    return keys


def numbers(usage: Usage) -> tuple[int, ...]:
    tokens = (usage.num_results, usage.input_tokens, usage.cached_tokens, usage.output_tokens)
    return (*tokens, usage.cost_picos, usage.worker_microseconds)


def read(session: Session, tenant: Tenant, by: str, asked: Period = ALL, **more: Any) -> list[Usage]:
    return list(read_usage(session, tenant.id, asked, group_by=parse_group_by(by), **more).data)


TOTAL = (12, 1266, 66, 120, 66 * 10**6 + 12, 66)


@pytest.mark.parametrize("by", ["day", "model", "key", "batch", "day,model", "batch,key,model,day"])
def test_the_sums_are_those_of_the_ledger_whatever_they_are_grouped_by(
    session: Session, tenant: Tenant, entries: list[str], by: str
) -> None:
    rows = read(session, tenant, by)
    assert tuple(map(sum, zip(*map(numbers, rows), strict=True))) == TOTAL


def test_days_models_and_keys_are_named_and_what_is_not_asked_for_is_not(
    session: Session, tenant: Tenant, entries: list[str]
) -> None:
    by_day = read(session, tenant, "day")
    assert [(row.day, row.num_results, row.model, row.key_id) for row in by_day] == [
        (f"2026-03-0{number}", 4, None, None) for number in (1, 2, 3)
    ]
    by_key = {row.key_id: row for row in read(session, tenant, "key")}
    assert by_key.keys() == {*entries, None}
    hint = by_key[entries[0]].key_hint
    assert hint is not None
    assert hint.startswith("tm-")
    assert by_key[None].key_hint is None


@pytest.mark.parametrize("by", ["day,model", "batch", "key,day"])
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_pages_together_are_the_whole_and_the_last_one_says_so(
    session: Session, tenant: Tenant, entries: list[str], by: str, limit: int
) -> None:
    group_by, page = parse_group_by(by), None
    rows: list[Usage] = []
    while True:
        found = read_usage(session, tenant.id, ALL, group_by=group_by, page=page, limit=limit)
        rows += found.data
        page = found.next_page
        if page is None:
            break
        assert len(found.data) == limit
    assert rows == read(session, tenant, by)


def test_both_days_of_a_period_belong_to_it(session: Session, tenant: Tenant, entries: list[str]) -> None:
    one = Period(since=DAY + timedelta(days=1), until=DAY + timedelta(days=1))
    assert [(row.day, row.num_results) for row in read(session, tenant, "day", one)] == [("2026-03-02", 4)]


def test_nobody_sees_what_another_tenant_has_used(session: Session, tenant: Tenant, entries: list[str]) -> None:
    assert read(session, tenants.create_tenant(session, "other"), "batch,key") == []


def test_rolling_old_bills_up_changes_no_sum(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, entries: list[str]
) -> None:
    # Costs that match their tokens: others are not rolled up.
    session.execute(text("UPDATE ledger SET cost_picos = input_tokens, input_price_picos = 1, output_price_picos = 0"))
    session.execute(
        text("UPDATE batch SET created_at = '2026-01-01', completed_at = '2026-03-04', results_purged_at = now()")
    )
    session.commit()
    before = read(session, tenant, "day,model,key,batch")
    assert history.roll_up(maker, age=timedelta(days=1)) == 3
    session.rollback()
    assert session.query(Ledger).count() < 12
    assert read(session, tenant, "day,model,key,batch") == before


@pytest.mark.parametrize("given", ["", "week", "day,day", "day,,model", "Day"])
def test_unknown_groups_are_refused_with_those_that_there_are(given: str) -> None:
    with pytest.raises(InputError, match="day, model, key, batch"):
        parse_group_by(given)


@pytest.mark.parametrize("page", ["", "x", "W10=", "WzFd", "WyJhIiwgImIiXQ=="])
def test_a_page_of_another_query_is_refused(session: Session, tenant: Tenant, page: str) -> None:
    with pytest.raises(InputError, match="next_page"):
        read_usage(session, tenant.id, ALL, group_by=[GroupBy.DAY], page=page)


def test_without_days_the_last_thirty_are_asked_for_and_a_year_is_the_most() -> None:
    assert period(None, None, today=DAY) == Period(since=DAY - timedelta(days=29), until=DAY)
    assert period(DAY, DAY + timedelta(days=MAX_DAYS - 1)).since == DAY
    for since, until in ((DAY, DAY - timedelta(days=1)), (DAY, DAY + timedelta(days=MAX_DAYS)), (None, date.min)):
        with pytest.raises(InputError, match=f"at most {MAX_DAYS} days"):
            period(since, until)


@pytest.mark.parametrize(
    ("picos", "shown", "micros"),
    [
        (0, "0.00", 0),
        (1, "0.000000000001", 0),
        (499_999, "0.000000499999", 0),
        (500_000, "0.0000005", 1),
        (12_500_000_000_000, "12.50", 12_500_000),
        (10**30 + 1, "1000000000000000000.000000000001", 10**24),
    ],
)
def test_amounts_are_shown_exactly_in_units_of_currency(picos: int, shown: str, micros: int) -> None:
    assert (in_currency(picos), rounded_micros(picos)) == (shown, micros)
