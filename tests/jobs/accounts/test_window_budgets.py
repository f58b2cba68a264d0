"""Tests of budgets of days, months and keys: set, spent, turned and verified."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import window_budgets
from jobs.accounts.allowances import Allowance
from jobs.accounts.keys import create_key
from jobs.accounts.window_budgets import NewBudget
from jobs.audit.audit import audit
from jobs.batches import lifecycle
from jobs.batches.submission import CreateBatch
from jobs.errors import InputError, NotFoundError, OverBudgetError
from jobs.settings import Settings
from jobs.states import BudgetUnit, BudgetWindow
from jobs.tables import Batch, Budget, Tenant
from tests.jobs.chunks.builders import claim_first, flush

Make = Callable[..., Any]
TOKENS, MONEY = BudgetUnit.TOKENS, BudgetUnit.MONEY
DAY, MONTH, TOTAL = BudgetWindow.DAY, BudgetWindow.MONTH, BudgetWindow.TOTAL
LINE_PICOS = 5 * 10**6 + 3 * 2 * 10**6
"""The amount that `builders.flush` bills per line: 5 tokens at 1,000,000 and 3 at 2,000,000."""


def set_budget(session: Session, tenant: Tenant, unit: BudgetUnit, limit: int, **more: Any) -> Allowance:
    wanted = NewBudget(**{"unit": unit, "window": DAY, "limit": limit, **more})
    found = window_budgets.set_budget(session, tenant.id, wanted)
    session.commit()
    return found


def turn(session: Session) -> None:
    """End the current windows."""
    session.execute(text("UPDATE window_budget SET window_start = now() - interval '2 days', window_end = now()"))
    session.execute(text("UPDATE ledger SET created_at = created_at - interval '1 day'"))
    session.commit()


def findings(maker: sessionmaker[Session]) -> list[str]:
    with maker() as fresh:
        return [finding.message for finding in audit(fresh)]


def create(session: Session, tenant: Tenant, file: Any, key_id: str | None = None) -> Batch:
    wanted = CreateBatch(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    batch = lifecycle.create_batch(session, tenant, wanted, Settings(), key_id=key_id)
    session.commit()
    return batch


def test_a_new_budget_counts_what_its_window_has_used_before(
    session: Session, maker: sessionmaker[Session], run: Make, tenant: Tenant
) -> None:
    flush(session, claim_first(session, run(4)), [0, 1])
    assert set_budget(session, tenant, MONEY, 10**12).spent == 2 * LINE_PICOS
    assert set_budget(session, tenant, TOKENS, 100, window=MONTH).spent == 16
    assert set_budget(session, tenant, TOKENS, 100, window=TOTAL).left == 84
    assert findings(maker) == []


def test_every_flush_is_counted_in_each_budget_that_it_belongs_to(
    session: Session, maker: sessionmaker[Session], run: Make, tenant: Tenant
) -> None:
    keys = [create_key(session, tenant.id)[0].id for _ in range(2)]
    own = set_budget(session, tenant, TOKENS, 10**6, key_id=keys[0])
    other = set_budget(session, tenant, TOKENS, 10**6, key_id=keys[1])
    everyone = set_budget(session, tenant, MONEY, 10**15)
    for key_id in (*keys, keys[0], None):
        flush(session, claim_first(session, run(4, api_key_id=key_id)), [0])
    spent = {found.budget_id: found.spent for found in window_budgets.allowances(session, tenant.id)}
    assert spent == {own.budget_id: 16, other.budget_id: 8, everyone.budget_id: 4 * LINE_PICOS}
    assert findings(maker) == []


def test_a_window_begins_anew_with_the_first_flush_after_its_end(
    session: Session, maker: sessionmaker[Session], run: Make, tenant: Tenant
) -> None:
    set_budget(session, tenant, TOKENS, 10**6, time_zone="Asia/Kolkata")
    claim = claim_first(session, run(4))
    flush(session, claim, [0, 1])
    turn(session)
    assert [found.spent for found in window_budgets.allowances(session, tenant.id)] == [0]
    flush(session, claim, [2], flush_no=1)
    [found] = window_budgets.allowances(session, tenant.id)
    assert found.spent == 8
    assert found.turns_at is not None
    assert (found.turns_at.hour, found.turns_at.minute) == (18, 30)
    assert findings(maker) == []


def test_a_flush_that_began_before_the_turn_is_of_the_window_before(
    session: Session, maker: sessionmaker[Session], run: Make, tenant: Tenant
) -> None:
    set_budget(session, tenant, TOKENS, 10**6)
    claim = claim_first(session, run(4))
    with maker() as late:
        late.execute(text("SELECT now()"))
        # Another transaction has turned it meanwhile: it starts after that one.
        session.execute(text("UPDATE window_budget SET window_start = clock_timestamp(), spent_amount = 0"))
        session.commit()
        flush(late, claim, [0])
    session.rollback()
    assert [found.spent for found in window_budgets.allowances(session, tenant.id)] == [0]
    assert findings(maker) == []


def test_set_again_it_gets_the_new_limit_and_removed_it_is_gone(session: Session, tenant: Tenant) -> None:
    first = set_budget(session, tenant, TOKENS, 5)
    again = set_budget(session, tenant, TOKENS, 7, warn_percent=50)
    assert (again.budget_id, again.limit, again.warn_percent) == (first.budget_id, 7, 50)
    set_budget(session, tenant, MONEY, 7)
    assert session.get_one(Budget, tenant.id, populate_existing=True).num_window_budgets == 2
    window_budgets.remove_budget(session, first.budget_id)
    assert [found.unit for found in window_budgets.allowances(session, tenant.id)] == [MONEY]
    assert session.get_one(Budget, tenant.id, populate_existing=True).num_window_budgets == 1
    with pytest.raises(NotFoundError, match="budgets list"):
        window_budgets.remove_budget(session, first.budget_id)


def test_set_again_it_keeps_the_zone_and_the_warning_that_are_left_out(session: Session, tenant: Tenant) -> None:
    first = set_budget(session, tenant, TOKENS, 5, time_zone="Asia/Tokyo", warn_percent=50)
    again = set_budget(session, tenant, TOKENS, 7)
    assert (again.limit, again.time_zone, again.warn_percent) == (7, "Asia/Tokyo", 50)
    assert again.turns_at == first.turns_at
    cleared = set_budget(session, tenant, TOKENS, 7, time_zone=None, warn_percent=None)
    assert (cleared.time_zone, cleared.warn_percent) == ("UTC", None)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"limit": -1}, "give 0 to"),
        ({"time_zone": "Mars/Base"}, "Europe/Berlin"),
        ({"time_zone": ""}, "Europe/Berlin"),
        ({"warn_percent": 101}, "1 to 100 per cent"),
        ({"key_id": "key_of_nobody"}, "keys list"),
    ],
)
def test_a_wrong_budget_is_refused(session: Session, tenant: Tenant, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        set_budget(session, tenant, TOKENS, **{"limit": 5, **changes})


def test_reaching_the_threshold_is_logged_once_a_window(
    session: Session, run: Make, tenant: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    set_budget(session, tenant, TOKENS, 40, warn_percent=40)
    claim = claim_first(session, run(4))
    with caplog.at_level(logging.WARNING, logger="jobs.accounts.window_budgets"):
        flush(session, claim, [0])
        assert caplog.messages == []
        for number in (1, 2):
            flush(session, claim, [number], flush_no=number)
    assert len(caplog.messages) == 1
    assert "spent=16 limit=40" in caplog.messages[0]
    [found] = window_budgets.allowances(session, tenant.id)
    said = window_budgets.warning([found], None, currency="EUR")
    assert said is not None
    assert said.startswith("40 % or more are spent: your budget of the day is 40 tokens, 24 tokens spent")
    assert "is 40 tokens, 1 token spent and 0 tokens reserved" in replace(found, spent=1).described("EUR")


def test_a_total_refuses_a_submit_that_does_not_fit_and_a_day_does_not(
    session: Session, make_file: Make, tenant: Tenant
) -> None:
    set_budget(session, tenant, TOKENS, 0)
    create(session, tenant, make_file())
    set_budget(session, tenant, TOKENS, 299, window=TOTAL)
    with pytest.raises(OverBudgetError, match="needs about 300 tokens and 299 are available"):
        create(session, tenant, make_file())
    session.rollback()
    set_budget(session, tenant, TOKENS, 300, window=TOTAL)
    create(session, tenant, make_file())


def test_a_key_whose_money_is_used_up_submits_nothing_and_the_others_do(
    session: Session, make_file: Make, tenant: Tenant
) -> None:
    keys = [create_key(session, tenant.id)[0].id for _ in range(2)]
    set_budget(session, tenant, MONEY, 0, window=TOTAL, key_id=keys[0])
    with pytest.raises(OverBudgetError, match=f"the budget of money of key {keys[0]} is used up"):
        create(session, tenant, make_file(), keys[0])
    session.rollback()
    create(session, tenant, make_file(), keys[1])


BREAKS = {
    "spent too little": ("UPDATE window_budget SET spent_amount = spent_amount - 1", "spent and the ledger"),
    "spent too much": (
        "UPDATE window_budget SET limit_amount = 1, committed_amount = 0",
        "0 reserved, and its limit is 1; 0 were committed before it",
    ),
    "covered too much": ("UPDATE chunk SET covered_picos = 9e12, covered_tokens = 9e12", "9000000000000 reserved"),
}


@pytest.mark.parametrize("broken", BREAKS)
@pytest.mark.parametrize("unit", BudgetUnit)
def test_the_audit_finds_what_is_wrong_with_a_budget(
    session: Session, maker: sessionmaker[Session], run: Make, tenant: Tenant, broken: str, unit: BudgetUnit
) -> None:
    set_budget(session, tenant, unit, 10**9)
    flush(session, claim_first(session, run(4)), [0])
    assert findings(maker) == []
    statement, words = BREAKS[broken]
    session.execute(text(statement))
    session.commit()
    assert any(words in message for message in findings(maker)), findings(maker)
