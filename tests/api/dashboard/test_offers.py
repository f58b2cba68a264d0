"""Tests that a batch's buttons are shown where the API would accept them: each API answer is compared with the page."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.states import AskedPriority
from tests.api.browser import Browser
from tests.api.dashboard.submitting import submit
from tests.api.worker import run, validate

Browse = Callable[[str | None], Browser]
OF_BATCH = "(SELECT tenant_id FROM batch WHERE id = :id)"
DELETE = "UPDATE file SET deleted_at = now() WHERE id = (SELECT {} FROM batch WHERE id = :id)"


@pytest.fixture(scope="module")
def deployment(deploy: Callable[..., Any]) -> Any:
    """An API of this module's own: it leaves open batches, which an operator's overview would list before others'."""
    return deploy()


@pytest.fixture
def browser(browse: Browse, deployment: Any) -> Browser:
    return browse(deployment.new_key())


def change(deployment: Any, batch_id: str, *changes: str) -> None:
    with Session(deployment.engine) as session, session.begin():
        for one in changes:
            session.execute(text(one), {"id": batch_id})


@pytest.mark.parametrize(
    ("code", "failed", "changes", "status"),
    [
        ("engine_failure", (1,), [], 200),
        ("context_length_exceeded", (0, 1), [], 409),
        ("engine_failure", (), [], 409),
        ("engine_failure", (1,), [DELETE.format("error_file_id")], 410),
        ("engine_failure", (1,), [DELETE.format("input_file_id")], 410),
        ("engine_failure", (1,), ["UPDATE batch SET error_file_id = NULL WHERE id = :id"], 409),
        ("engine_failure", (1,), ["UPDATE batch SET endpoint = '/v1/documents/read' WHERE id = :id"], 400),
        ("engine_failure", (1,), [f"UPDATE tenant SET best_priority = 'bulk' WHERE id = {OF_BATCH}"], 403),
        ("engine_failure", (1,), [f"UPDATE tenant SET max_open_batches = 0 WHERE id = {OF_BATCH}"], 429),
        ("engine_failure", (1,), [f"UPDATE tenant SET disabled_at = now() WHERE id = {OF_BATCH}"], 403),
        ("engine_failure", (1,), ["UPDATE batch SET results_deleted_at = now() WHERE id = :id"], 200),
    ],
)
def test_a_retry_is_offered_where_the_api_makes_one_and_else_the_page_says_why_not(
    deployment: Any,
    browser: Browser,
    input_lines: Callable[..., bytes],
    *,
    code: str,
    failed: tuple[int, ...],
    changes: list[str],
    status: int,
) -> None:
    batch_id = submit(browser, input_lines(2))
    run(deployment, batch_id, failed=failed, code=code)
    change(deployment, batch_id, *changes)
    page = browser.get(f"/batches/{batch_id}").text
    answer = browser.call("POST", f"/v1/batches/{batch_id}/retry")
    assert answer.status_code == status, answer.text
    assert (f"POST /v1/batches/{batch_id}/retry" in page) == (status == 200)
    if failed and status != 200:
        assert answer.json()["error"]["message"] in _unescaped(page)
    else:
        assert "No retry" not in page


def _unescaped(page: str) -> str:
    return page.replace("&#39;", "'").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def test_what_is_offered_of_an_open_batch_is_what_its_state_allows(
    deployment: Any, browser: Browser, input_lines: Callable[..., bytes]
) -> None:
    batch_id = submit(browser, input_lines(2))

    def offered() -> list[str]:
        page = browser.get(f"/batches/{batch_id}").text
        return [name for name, call in _calls(batch_id).items() if f'"{call}"' in page]

    assert offered() == ["cancel", "change"]
    validate(deployment, batch_id)
    assert offered() == ["cancel", "change"]
    change(deployment, batch_id, "UPDATE batch SET state = 'finalizing', outcome = 'completed' WHERE id = :id")
    assert offered() == []
    change(deployment, batch_id, "UPDATE batch SET state = 'completed', completed_at = now() WHERE id = :id")
    assert offered() == ["delete"]


def _calls(batch_id: str) -> dict[str, str]:
    at = f"/v1/batches/{batch_id}"
    return {
        "cancel": f"POST {at}/cancel",
        "change": f"POST {at}",
        "delete": f"DELETE {at}",
        "retry": f"POST {at}/retry",
    }


def _classes(page: str) -> list[str]:
    select = re.search(r'<select name="priority">(.*?)</select>', page, re.DOTALL)
    return [] if select is None else re.findall(r"<option[^>]*>(\w+)</option>", select[1])


@pytest.mark.parametrize(
    ("best", "classes"),
    [
        (AskedPriority.URGENT, ["urgent", "normal", "bulk"]),
        (AskedPriority.NORMAL, ["normal", "bulk"]),
        (AskedPriority.BULK, ["bulk"]),
    ],
)
def test_a_class_is_offered_to_whom_may_ask_for_it(
    browse: Browse, deployment: Any, input_lines: Callable[..., bytes], *, best: AskedPriority, classes: list[str]
) -> None:
    browser = browse(deployment.new_key(best_priority=best))
    batch_id = submit(browser, input_lines(2), priority=classes[-1])
    assert _classes(browser.get(f"/batches/{batch_id}").text) == classes
    assert _classes(browser.get("/submit").text) == classes
    for asked in AskedPriority:
        answer = browser.call("POST", f"/v1/batches/{batch_id}", json={"priority": asked.value})
        assert answer.status_code == (200 if asked.value in classes else 403)


def test_a_class_that_may_no_longer_be_asked_for_stands_as_it_is(
    browse: Browse, deployment: Any, input_lines: Callable[..., bytes]
) -> None:
    browser = browse(deployment.new_key())
    batch_id = submit(browser, input_lines(2), priority="urgent")
    change(deployment, batch_id, f"UPDATE tenant SET best_priority = 'normal' WHERE id = {OF_BATCH}")
    page = browser.get(f"/batches/{batch_id}").text
    assert _classes(page) == ["urgent", "normal", "bulk"]
    assert "<option selected>urgent</option>" in page
    assert "data-changes" in page, "what is left as it is is not sent"


def test_a_batch_in_class_overflow_keeps_it(
    deployment: Any, browser: Browser, input_lines: Callable[..., bytes]
) -> None:
    batch_id = submit(browser, input_lines(2))
    change(deployment, batch_id, "UPDATE batch SET priority = 'overflow' WHERE id = :id")
    assert _classes(browser.get(f"/batches/{batch_id}").text) == []
    assert browser.call("POST", f"/v1/batches/{batch_id}", json={"priority": "bulk"}).status_code == 409


def test_who_may_change_nothing_is_led_to_no_form(
    browse: Browse, browser: Browser, deployment: Any, input_lines: Callable[..., bytes]
) -> None:
    batch_id = submit(browser, input_lines(2))
    assert 'href="/submit"' in browser.get("/").text
    change(deployment, batch_id, f"UPDATE tenant SET disabled_at = now() WHERE id = {OF_BATCH}")
    for path in ("/", "/batches", f"/batches/{batch_id}"):
        page = browser.get(path).text
        assert ('href="/submit"' in page, "data-call" in page, "data-submit" in page) == (False, False, False)
        assert "notice warn" in page, "it says why"
    assert browser.get("/submit").status_code == 403
