"""Batches on pages: a tenant's own, an operator's all, live, and with what went wrong by code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.batches.lifecycle import find_batches
from jobs.overview import listing
from jobs.overview.listing import BatchFilter, Shown
from jobs.partitions import batch_day
from jobs.tables import Result
from tests.api.browser import Browser

Browse = Callable[[str | None], Browser]
MODEL = "org/tiny"


def submit(browser: Browser, lines: bytes, **options: str) -> str:
    token = {"x-csrf-token": browser.token()}
    file = browser.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", lines)}, headers=token)
    body = {"input_file_id": file.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    made = browser.call("POST", "/v1/batches", json=body | options)
    assert made.status_code == 200, made.text
    batch_id = made.json()["id"]
    assert isinstance(batch_id, str)
    return batch_id


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


def events(browser: Browser, path: str) -> Iterator[dict[str, Any]]:
    with browser.stream("GET", path) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


def test_an_open_page_is_told_what_changes_and_nothing_more(
    browser: Browser, input_lines: Callable[..., bytes]
) -> None:
    batch_id = submit(browser, input_lines(2))
    told = events(browser, f"/live/batches/{batch_id}")
    assert next(told)["values"]["b.state"] == ["validating", ""]
    browser.call("POST", f"/v1/batches/{batch_id}/cancel")
    changed = next(told)
    assert changed["values"]["b.state"] == ["cancelling", "warn"]
    assert "b.tokens" not in changed["values"]


def test_a_list_that_has_other_rows_has_another_layout(browser: Browser, input_lines: Callable[..., bytes]) -> None:
    told = events(browser, "/live/batches")
    before = next(told)
    submit(browser, input_lines(1))
    assert next(told)["layout"] != before["layout"]


def test_nobody_streams_what_is_another_tenants(
    browse: Browse, browser: Browser, deployment: Any, input_lines: Callable[..., bytes]
) -> None:
    batch_id = submit(browser, input_lines(2))
    told = next(events(browse(deployment.new_key()), f"/live/batches/{batch_id}"))
    assert told == {"layout": "gone", "values": {}}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (BatchFilter(), ["c", "b", "a"]),
        (BatchFilter(shown=Shown.OPEN), ["c"]),
        (BatchFilter(shown=Shown.ENDED), ["b", "a"]),
        (BatchFilter(shown=Shown.FAILED), ["b", "a"]),
        (BatchFilter(model="m"), ["b"]),
        (BatchFilter(named="a"), ["a"]),
        (BatchFilter(named="%"), []),
        (BatchFilter(before="b"), ["a"]),
    ],
)
def test_lists_have_what_is_asked_for(
    wanted: BatchFilter, found: list[str], deployment: Any, browser: Browser, input_lines: Callable[..., bytes]
) -> None:
    ids = {name: submit(browser, input_lines(n + 1)) for n, name in enumerate("abc")}
    changes = {"a": "state = 'failed'", "b": "state = 'completed', num_failed = 1, model = 'm'"}
    with Session(deployment.engine) as session, session.begin():
        for name, change in changes.items():
            session.execute(text(f"UPDATE batch SET {change} WHERE id = :id"), {"id": ids[name]})
        tenant_id = find_batches(session, [ids["a"]])[0].tenant_id
        named = ids.get(wanted.named, wanted.named) if wanted.named else None
        before = ids[wanted.before] if wanted.before else None
        asked = BatchFilter(shown=wanted.shown, model=wanted.model, named=named, before=before)
        batches, has_more = listing.list_batches(session, tenant_id, asked)
        assert [batch.id for batch in batches] == [ids[name] for name in found]
        assert not has_more


def test_failed_lines_are_counted_by_code_with_one_of_each(
    deployment: Any, browser: Browser, input_lines: Callable[..., bytes]
) -> None:
    batch_id = submit(browser, input_lines(4))
    too_long = [{"body": {"error": {"code": "too_long", "message": said}}} for said in ("<b>long</b>", "longer")]
    failed = [
        {"custom_id": "a", "response": None, "error": {"code": "expired", "message": "too late"}},
        {
            "custom_id": "b",
            "response": {"body": {"error": {"code": "too_long", "message": "<b>long</b>"}}},
            "error": None,
        },
        {"custom_id": "c", "response": too_long[1], "error": None},
    ]
    with Session(deployment.engine) as session, session.begin():
        session.execute(text("UPDATE batch SET num_completed = 1, num_failed = 3 WHERE id = :id"), {"id": batch_id})
        batch = find_batches(session, [batch_id])[0]
        common = {"batch_day": batch_day(batch.created_at), "batch_id": batch_id, "status_code": None}
        counts = {"input_tokens": 0, "cached_tokens": 0, "output_tokens": 0}
        for n, line in enumerate([*failed, {"custom_id": "d"}]):
            row = Result(line_no=n, result_no=n + 1, is_error=n < 3, line=json.dumps(line).encode(), **common, **counts)
            session.add(row)
        session.flush()
        found = [(one.code, one.num_lines, one.custom_id, one.message) for one in listing.failures(session, batch)]
    assert found == [("too_long", 2, "b", "<b>long</b>"), ("expired", 1, "a", "too late")]
    page = browser.get(f"/batches/{batch_id}").text
    assert "too_long" in page
    assert "<b>long</b>" not in page
