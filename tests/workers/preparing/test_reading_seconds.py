"""Tests of reading seconds: measured, billed once at their price, limited per day, and free if the failure is ours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from sqlalchemy import text

from jobs.accounts import limits, tenants, window_budgets
from jobs.accounts.prices import Prices
from jobs.accounts.usage import parse_group_by, period, read_usage
from jobs.accounts.window_budgets import NewBudget
from jobs.audit.audit import audit
from jobs.chunks import claiming, deferring, leasing
from jobs.chunks.recording import LineResult
from jobs.forecasts.outlooks import outlooks
from jobs.lines.document_bodies import PREPARE_MODEL, READ_ENDPOINT
from jobs.states import BudgetUnit, BudgetWindow
from jobs.storage import Storage
from jobs.tables import Batch
from tests.workers.preparing.builders import Library, Preparer
from workers.preparing.documents import DocumentAnswers

A_SECOND = 1_000_000
USED = "SELECT reading_microseconds FROM budget WHERE tenant_id = '{}'"


def priced(preparer: Preparer, price: str) -> Preparer:
    return preparer.with_settings(reading_price=price)


def limit(library: Library, seconds: int | None) -> None:
    with library.sessions.begin() as session:
        limits.set_limits(session, library.tenant.id, {"reading_seconds_per_day": seconds})


def use(library: Library, microseconds: int, *, price_picos: int = 0) -> None:
    """Have a line read that takes so long; the flush is repeated, as after a commit with an unknown outcome."""
    library.submit(READ_ENDPOINT, [{"file_id": "file_1", "name": "a.txt"}])
    lease = library.settings.lease
    result = LineResult(line_no=0, line=b"{}", status_code=200, reading_microseconds=microseconds)
    for flush_no in range(2):
        with library.sessions.begin() as session:
            if flush_no == 0:
                found = claiming.claim_next(session, model=PREPARE_MODEL, worker_id="w", lease=lease)
                assert found is not None
                claim = replace(found, prices=Prices(reading_picos=price_picos))
            leasing.flush(session, claim, [result], flush_no=flush_no, lease=lease, is_last=flush_no == 1)


def usage_of(library: Library) -> Any:
    with library.sessions() as session:
        [row] = read_usage(session, library.tenant.id, period(None, None), group_by=parse_group_by("model")).data
    return row


def test_what_is_read_is_measured_and_costs_nothing_unless_it_has_a_price(library: Library, preparer: Preparer) -> None:
    library.read({"a.txt": b"text", "empty.txt": b""})
    assert preparer.run_next()
    row = usage_of(library)
    assert row.reading_microseconds > 0
    assert (row.model, row.cost_picos, row.reading_picos, row.worker_microseconds) == (None, 0, 0, 0)
    assert library.rows(USED.format(library.tenant.id)) == [(row.reading_microseconds,)]


def test_a_second_has_its_price_in_ledger_batch_and_usage(library: Library, preparer: Preparer) -> None:
    library.read({"a.txt": b"text"})
    assert priced(preparer, "0.25").run_next()
    row = usage_of(library)
    assert row.reading_picos == row.cost_picos == row.reading_microseconds * 250_000 > 0
    assert library.rows("SELECT reading_microseconds, cost_picos FROM batch") == [
        (row.reading_microseconds, row.cost_picos)
    ]
    assert library.rows("SELECT model, reading_price_picos, input_tokens FROM ledger") == [(PREPARE_MODEL, 250_000, 0)]
    with library.sessions() as session:
        assert audit(session) == []


def test_what_is_stored_twice_is_billed_once(library: Library) -> None:
    use(library, 3 * A_SECOND, price_picos=2)
    assert library.rows("SELECT num_results, reading_microseconds, cost_picos FROM ledger") == [
        (1, 3 * A_SECOND, 6 * A_SECOND)
    ]
    assert library.rows(USED.format(library.tenant.id)) == [(3 * A_SECOND,)]


def test_a_bill_that_is_not_that_of_its_seconds_is_found(library: Library) -> None:
    use(library, A_SECOND, price_picos=2)
    with library.sessions.begin() as session:
        session.execute(text("UPDATE ledger SET reading_microseconds = 7"))
    with library.sessions() as session:
        assert sorted(finding.message.split()[0] for finding in audit(session)) == ["1", "the"]


def test_budgets_of_money_count_it(library: Library) -> None:
    with library.sessions.begin() as session:
        month = NewBudget(unit=BudgetUnit.MONEY, window=BudgetWindow.MONTH, limit=10**9)
        window_budgets.set_budget(session, library.tenant.id, month)
    use(library, A_SECOND, price_picos=2)
    with library.sessions() as session:
        [found] = window_budgets.allowances(session, library.tenant.id)
    assert found.spent == 2 * A_SECOND


def test_a_fault_of_ours_costs_nothing(library: Library, preparer: Preparer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(DocumentAnswers, "answer", fail)
    batch_id = library.read({"a.txt": b"text"})
    assert priced(preparer, "1").run_next()
    assert library.results(batch_id)["d0"]["error"]["code"] == "worker_failure"
    assert library.rows("SELECT reading_microseconds, cost_picos FROM ledger") == [(0, 0)]


def waits_for(library: Library, batch_id: str) -> str | None:
    with library.sessions() as session:
        batch = session.get_one(Batch, batch_id)
        return outlooks(session, [batch])[batch_id].waits_for


def resumed(library: Library) -> int:
    with library.sessions.begin() as session:
        return deferring.resume(session)


def test_beyond_the_limit_of_the_day_lines_wait_and_say_so_until_it_is_raised(
    library: Library, preparer: Preparer
) -> None:
    use(library, 2 * A_SECOND)
    limit(library, 2)
    batch_id = library.read({"a.txt": b"text"})
    assert not preparer.run_next()
    assert (waits_for(library, batch_id) or "").startswith("waiting_reading: the 2 seconds")
    chunks = f"SELECT state, losses FROM chunk WHERE batch_id = '{batch_id}'"
    assert library.rows(chunks) == [("deferred", 0)]
    ((after_midnight,),) = library.rows(
        f"SELECT extract(epoch FROM deferred_until)::bigint % 86400 FROM batch WHERE id = '{batch_id}'"
    )
    assert after_midnight < 60, "of UTC"
    assert resumed(library) == 0
    limit(library, 3)
    assert resumed(library) == 1
    assert preparer.run_next()
    assert len(library.bodies(batch_id)) == 1
    assert library.rows(f"SELECT reading_limit_seconds FROM batch WHERE id = '{batch_id}'") == [(None,)]


def test_a_chunk_that_is_put_off_is_not_read(
    library: Library, preparer: Preparer, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(library, 2 * A_SECOND)
    limit(library, 2)
    library.read({"a.txt": b"text"})
    reads: list[str] = []
    monkeypatch.setattr(Storage, "read_whole_range", lambda _self, key, *_: reads.append(key))
    assert not preparer.run_next()
    assert reads == []


def test_the_day_before_does_not_count(library: Library, preparer: Preparer) -> None:
    use(library, 9 * A_SECOND)
    limit(library, 1)
    with library.sessions.begin() as session:
        session.execute(text("UPDATE budget SET reading_day = reading_day - 1"))
    library.read({"a.txt": b"text"})
    assert preparer.run_next()
    ((used,),) = library.rows(USED.format(library.tenant.id))
    assert 0 < used < 9 * A_SECOND


def test_a_limit_is_its_tenants_alone_and_the_setting_is_for_those_without_one(
    library: Library, preparer: Preparer
) -> None:
    with library.sessions.begin() as session:
        other = tenants.create_tenant(session, "other")
    theirs = Library(sessions=library.sessions, storage=library.storage, settings=library.settings, tenant=other)
    held = preparer.with_settings(tenant_reading_seconds_per_day=0)
    limit(library, 1000)
    library.read({"a.txt": b"text"})
    assert held.run_next()
    waiting = theirs.read({"a.txt": b"text"})
    assert not held.run_next()
    assert "waiting_reading" in (waits_for(theirs, waiting) or "")


def test_a_cancelled_batch_waits_no_more(library: Library, preparer: Preparer) -> None:
    limit(library, 0)
    batch_id = library.read({"a.txt": b"text"})
    with library.sessions.begin() as session:
        claim = claiming.claim_next(session, model=PREPARE_MODEL, worker_id="w", lease=library.settings.lease)
        session.execute(text("UPDATE batch SET state = 'cancelling'"))
    assert claim is not None
    assert not preparer.run(claim)
    assert library.rows("SELECT state FROM chunk") == [("withdrawn",)]
    assert library.rows("SELECT reading_limit_seconds, deferred_until FROM batch") == [(None, None)]
    assert orjson.dumps(library.results(batch_id)) == b"{}"
