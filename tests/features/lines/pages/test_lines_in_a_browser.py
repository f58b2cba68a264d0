"""Tests of the pages of lines in a real browser: a search by keyboard, its end, and what everybody must read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.api.browser import Browser as Client
from tests.api.worker import run
from tests.e2e.driven import CHROMIUM, DESK, MISSING, PHONE, Appearance, chromium, open_window

pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason=MISSING)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def key(deployment: Any) -> str:
    made: str = deployment.new_key()
    return made


@pytest.fixture
def path(deployment: Any, key: str, browse: Callable[[str | None], Client], input_lines: Callable[..., bytes]) -> str:
    """The lines of a batch of 60 that has ended; 5 and 59 (from 0) have failed."""
    client = browse(key)
    form = {"purpose": (None, "batch"), "file": ("in.jsonl", input_lines(60))}
    file_id = client.call("POST", "/v1/files", files=form).json()["id"]
    wanted = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch_id = client.call("POST", "/v1/batches", json=wanted).json()["id"]
    run(deployment, batch_id, failed=(5, 59))
    return f"/batches/{batch_id}/lines"


@pytest.mark.parametrize("look", [DESK, PHONE], ids=["desk", "phone"])
def test_every_page_of_lines_can_be_read_by_everybody(
    look: Appearance, browser: Browser, deployment: Any, *, key: str, path: str
) -> None:
    window = open_window(browser, deployment.url, key, look)
    for each in (path, f"{path}?show=failed", f"{path}?code=none", f"{path}/6?show=failed", f"{path}/1"):
        window.page.goto(each)
        assert (each, window.violations(), window.is_too_wide(), window.complaints) == (each, [], False, [])
    window.page.context.close()


def test_a_search_shows_hits_and_leads_to_their_lines(
    browser: Browser, deployment: Any, *, key: str, path: str
) -> None:
    window = open_window(browser, deployment.url, key)
    page = window.page
    page.goto(path)
    page.get_by_label("Text of a custom_id").fill("line-5")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("11 found")
    expect(page.locator("#hits tbody tr")).to_have_count(11)
    assert (window.violations(), window.complaints) == ([], [])
    page.locator("#hits").get_by_role("link", name="60").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Line 60")
    page.goto(f"{path}?show=failed")
    page.get_by_label("Text of a custom_id").fill("line-5")
    page.keyboard.press("Enter")
    expect(page.locator("#hits tbody tr")).to_have_count(2)
    page.context.close()


def test_a_search_can_be_stopped(browser: Browser, deployment: Any, *, key: str, path: str) -> None:
    page = open_window(browser, deployment.url, key).page
    page.goto(path)
    page.route("**/lines/grep*", lambda _: None)  # never answered
    page.get_by_label("Text of a custom_id").fill("x")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status")).to_contain_text("stopped")
    expect(page.get_by_role("button", name="Search these lines")).to_be_enabled()
    page.context.close()


def test_a_search_that_breaks_off_is_no_end(browser: Browser, deployment: Any, *, key: str, path: str) -> None:
    page = open_window(browser, deployment.url, key).page
    page.goto(path)
    page.route("**/lines/grep*", lambda route: route.fulfill(content_type="application/x-ndjson", body=""))
    page.get_by_label("Text of a custom_id").fill("x")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("broke off")
    expect(page.get_by_role("status")).to_contain_text("not ended")
    page.context.close()
