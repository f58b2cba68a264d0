"""Tests of batches on pages: a tenant's own, an operator's all, live, and with failures by code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.batches.lifecycle import find_batches
from jobs.overview import backlog, failures, listing
from jobs.overview.listing import BatchFilter, Shown
from jobs.partitions import batch_day
from jobs.tables import Batch, Result
from tests.api.browser import Browser
from tests.api.dashboard.submitting import submit

Browse = Callable[[str | None], Browser]
MODEL = "org/tiny"


@pytest.fixture
def browser(browse: Browse, deployment: Any) -> Browser:
    return browse(deployment.new_key())


def test_a_tenant_sees_its_own_and_an_operator_all(
    browse: Browse, browser: Browser, deployment: Any, operator_key: str, input_lines: Callable[..., bytes]
) -> None:
    batch_id = submit(browser, input_lines(3))
    stranger, operator = browse(deployment.new_key()), browse(operator_key)
    for path in ("/", "/batches", f"/batches/{batch_id}"):
        assert batch_id in browser.get(path).text
        assert batch_id in operator.get(path).text
        assert f"/batches/{batch_id}" not in stranger.get(path).text
    assert stranger.get(f"/batches/{batch_id}").status_code == 404
    assert "Cancel" in browser.get(f"/batches/{batch_id}").text
    assert "Cancel" not in operator.get(f"/batches/{batch_id}").text


def test_an_open_page_is_told_its_state(browser: Browser, input_lines: Callable[..., bytes]) -> None:
    batch_id = submit(browser, input_lines(2))
    told = browser.events(f"/live/batches/{batch_id}")
    assert next(told)["values"]["b.state"] == ["validating", ""]
    browser.call("POST", f"/v1/batches/{batch_id}/cancel")
    changed = next(told)
    assert changed["values"]["b.state"] == ["cancelling", "warn"]


def test_counts_and_a_warning_have_places_on_an_open_page(
    browser: Browser, deployment: Any, input_lines: Callable[..., bytes]
) -> None:
    batch_id = submit(browser, input_lines(2))
    told = browser.events(f"/live/batches/{batch_id}")
    before = next(told)["values"]
    assert (before["b.completed"], before["b.failed"], before["b.warning"]) == ("0", "0", "")
    counts = "num_completed = 1, num_truncated = 1, output_tokens = 1300, reasoning_tokens = 1234"
    with Session(deployment.engine) as session, session.begin():
        session.execute(text(f"UPDATE batch SET {counts} WHERE id = :id"), {"id": batch_id})
    changed = next(told)["values"]
    assert (changed["b.completed"], changed["b.truncated"]) == ("1", "1 truncated")
    assert (changed["b.output"], changed["b.thoughts"]) == ("1,300", "1,234 of thoughts")
    assert "b.state" not in changed, "only what has changed is told"
    page = browser.get(f"/batches/{batch_id}").text
    for name in ("completed", "truncated", "failed", "thoughts", "warning"):
        assert f'data-live="b.{name}"' in page


def test_a_list_that_has_other_rows_has_another_layout(browser: Browser, input_lines: Callable[..., bytes]) -> None:
    told = browser.events("/live/batches")
    before = next(told)
    submit(browser, input_lines(1))
    assert next(told)["layout"] != before["layout"]


def test_nobody_streams_what_is_another_tenants(
    browse: Browse, browser: Browser, deployment: Any, input_lines: Callable[..., bytes]
) -> None:
    batch_id = submit(browser, input_lines(2))
    told = next(browse(deployment.new_key()).events(f"/live/batches/{batch_id}"))
    assert told == {"layout": "gone", "values": {}}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (BatchFilter(), ["c", "b", "a"]),
        (BatchFilter(shown=Shown.OPEN), ["c"]),
        (BatchFilter(shown=Shown.ENDED), ["b", "a"]),
        (BatchFilter(shown=Shown.FAILED), ["b", "a"]),
        (BatchFilter(model="m"), ["b"]),
        (BatchFilter(found="a"), ["a"]),
        (BatchFilter(found="%"), []),
        (BatchFilter(found="BEST Papers"), ["c"]),
        (BatchFilter(found="team=search"), ["b"]),
        (BatchFilter(since=date(2026, 1, 2), until=date(2026, 1, 2)), ["b"]),
        (BatchFilter(since=date.min, until=date.max), ["c", "b", "a"]),
        (BatchFilter(cost_from=Decimal("0.5")), ["a"]),
        (BatchFilter(before="b"), ["a"]),
    ],
)
def test_lists_have_what_is_asked_for(
    wanted: BatchFilter, found: list[str], deployment: Any, browser: Browser, input_lines: Callable[..., bytes]
) -> None:
    ids = {name: submit(browser, input_lines(n + 1)) for n, name in enumerate("abc")}
    changes = {
        "a": "state = 'failed', cost_picos = 500000000000, created_at = '2026-01-01 12:00+0'",
        "b": "state = 'completed', num_failed = 1, model = 'm', metadata = '{\"team\": \"search\"}',"
        " created_at = '2026-01-02 12:00+0'",
        "c": "name = 'The best papers'",
    }
    with Session(deployment.engine) as session, session.begin():
        for name, change in changes.items():
            session.execute(text(f"UPDATE batch SET {change} WHERE id = :id"), {"id": ids[name]})
        tenant_id = find_batches(session, [ids["a"]])[0].tenant_id
        before = ids[wanted.before] if wanted.before else None
        asked = replace(wanted, found=ids.get(wanted.found or "", wanted.found), before=before)
        batches, has_more = listing.list_batches(session, tenant_id, asked)
        assert [batch.id for batch in batches] == [ids[name] for name in found]
        assert not has_more


def fail(session: Session, batch_id: str, *errors: dict[str, Any]) -> Batch:
    """Give a batch a failed line for each error, and an answered one."""
    counts = {"input_tokens": 0, "cached_tokens": 0, "output_tokens": 0}
    session.execute(
        text("UPDATE batch SET num_completed = 1, num_failed = :num WHERE id = :id"),
        {"id": batch_id, "num": len(errors)},
    )
    batch = find_batches(session, [batch_id])[0]
    common = {"batch_day": batch_day(batch.created_at), "batch_id": batch_id, "status_code": None} | counts
    for n, line in enumerate([*errors, {}]):
        written = json.dumps({"custom_id": "abcdef"[n]} | line).encode()
        session.add(Result(line_no=n, result_no=n + 1, is_error=n < len(errors), line=written, **common))
    session.flush()
    return batch


EXPIRED = {"response": None, "error": {"code": "expired", "message": "too late"}}
TOO_LONG, LONGER = (
    {"response": {"body": {"error": {"code": "too_long", "message": said}}}, "error": None}
    for said in ("<b>long</b>", "longer")
)


def test_failed_lines_are_counted_by_code_with_one_of_each(
    deployment: Any, browser: Browser, input_lines: Callable[..., bytes]
) -> None:
    batch_id = submit(browser, input_lines(4))
    with Session(deployment.engine) as session, session.begin():
        batch = fail(session, batch_id, EXPIRED, TOO_LONG, LONGER)
        found = [(one.code, one.num_lines, one.custom_id, one.message) for one in failures.of_batch(session, batch)]
    assert found == [("too_long", 2, "b", "<b>long</b>"), ("expired", 1, "a", "too late")]
    page = browser.get(f"/batches/{batch_id}").text
    assert "too_long" in page
    assert "<b>long</b>" not in page


def test_a_batch_whose_lines_failed_is_shown_as_that_and_its_status_stays_openais(
    deployment: Any, browser: Browser, input_lines: Callable[..., bytes]
) -> None:
    batch_id = submit(browser, input_lines(14))
    done = "UPDATE batch SET state = 'completed', completed_at = now(), num_requests = 14 WHERE id = :id"
    with Session(deployment.engine) as session, session.begin():
        fail(session, batch_id, *[EXPIRED] * 3)
        session.execute(text(done), {"id": batch_id})
    for path, place in ((f"/live/batches/{batch_id}", "b"), ("/live/batches", "0")):
        values = next(browser.events(path))["values"]
        assert values[f"{place}.state"] == ["mostly failed", "bad"]
        assert (values[f"{place}.done"], values[f"{place}.failing"]) == ("72", "286")
    page = browser.get("/batches").text
    assert '<span class="pill bad" data-live="0.state">mostly failed</span>' in page
    assert browser.get(f"/v1/batches/{batch_id}").json()["status"] == "completed"


def test_a_failed_line_may_hold_what_postgres_reads_no_json_with(
    deployment: Any, browser: Browser, input_lines: Callable[..., bytes]
) -> None:
    batch_id = submit(browser, input_lines(3))
    with Session(deployment.engine) as session, session.begin():
        batch = fail(session, batch_id, {"custom_id": "a\0", "error": {"code": "expired", "message": "late \0"}})
        [found] = failures.of_batch(session, batch)
    assert (found.custom_id, found.message) == ("a\ufffd", "late \ufffd")
    assert browser.get("/").status_code == 200


def test_what_went_wrong_lately_is_told_by_code_over_all_batches(
    browse: Browse,
    deployment: Any,
    browser: Browser,
    input_lines: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older, newer, refused, old = (submit(browser, input_lines(n + 2)) for n in range(4))
    listed = json.dumps(
        [{"code": "invalid_json", "message": "no JSON", "line": n, "param": None} for n in (1, 2, 3, 4)]
    )
    with Session(deployment.engine) as session, session.begin():
        tenant_id = fail(session, older, EXPIRED, LONGER).tenant_id
        fail(session, newer, TOO_LONG)
        session.execute(
            text("UPDATE batch SET state = 'failed', errors = CAST(:errors AS jsonb) WHERE id = :id"),
            {"id": refused, "errors": listed},
        )
        fail(session, old, EXPIRED)
        session.execute(text("UPDATE batch SET created_at = now() - interval '2 days' WHERE id = :id"), {"id": old})
        session.expire_all()
        ids = backlog.failed_lately(session, [tenant_id], most=failures.MOST_BATCHES)[tenant_id]
        batches = [session.get_one(Batch, batch_id) for batch_id in ids]
        lately = failures.lately(session, batches)
        monkeypatch.setattr(failures, "LOOKED_AT_LATELY", 1)
        less = failures.lately(session, batches)
    found = [(one.code, one.num_lines, one.num_batches, one.batch_id, one.message) for one in lately.by_code]
    assert found == [
        ("invalid_json", 4, 1, refused, "no JSON"),
        ("too_long", 2, 2, newer, "<b>long</b>"),
        ("expired", 1, 1, older, "too late"),
    ]
    assert (lately.num_looked_at, lately.num_lines) == (7, 7)
    assert (less.num_looked_at, less.num_lines) == (4, 7)
    assert ("What went wrong" in browser.get("/").text, "<b>long</b>" in browser.get("/").text) == (True, False)
    assert "What went wrong" not in browse(deployment.new_key()).get("/").text
