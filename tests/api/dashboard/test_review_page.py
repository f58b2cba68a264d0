"""The page of reviews in a real browser: typed, corrected, items added and dropped, beside another reviewer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from extraction.scoring import reviews
from tests.api.extracting import completed_extraction
from tests.e2e.driven import CHROMIUM, MISSING, PHONE, Window, chromium, open_window

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)

LINE = {"type": "object", "properties": {"name": {"type": "string"}, "count": {"type": "integer"}}}
SCHEMA = {
    "type": "object",
    "properties": {
        "vendor": {"type": "string"},
        "number": {"type": "integer"},
        "paid": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "lines": {"type": "array", "items": LINE},
    },
}
PAPER = b"vendor: Birch Ltd\ntags: blue\ntags: red"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def extraction_id(http: httpx.Client, deployment: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """An extraction of one document, all whose values are looked at."""
    monkeypatch.setattr(reviews, "SAMPLED", 1.0)
    return completed_extraction(http, deployment, SCHEMA, PAPER)


@pytest.fixture
def window(browser: Browser, deployment: Any, http: httpx.Client) -> Iterator[Window]:
    """A phone, as the owner of `http`."""
    key = http.headers["authorization"].removeprefix("Bearer ")
    found = open_window(browser, deployment.url, key, PHONE)
    yield found
    found.page.context.close()


def go_to(page: Page, extraction_id: str, path: str) -> None:
    page.goto(f"/reviews/{extraction_id}")
    expect(page.locator("#path")).not_to_be_empty()
    while page.locator("#path").inner_text() != path:
        before = page.locator("#path").inner_text()
        page.keyboard.press("n")
        expect(page.locator("#path")).not_to_have_text(before)
    expect(page.locator("#lists section")).to_have_count(2)


def fields(http: httpx.Client, extraction_id: str) -> dict[str, Any]:
    return dict(json.loads(http.get(f"/v1/extractions/{extraction_id}/results").text)["fields"])


def hand_back(deployment: Any) -> None:
    """End every claim, as its time does: a page that is loaded again claims anew."""
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE review SET claimed_until = NULL")


def test_a_number_is_typed_as_one_and_a_choice_chosen(
    window: Window, http: httpx.Client, extraction_id: str, deployment: Any
) -> None:
    page = window.page
    go_to(page, extraction_id, "number")
    left = int(page.locator("#left").inner_text())
    page.keyboard.press("c")
    page.keyboard.type("12.5")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("12.5 is no whole number")
    field = page.get_by_label("What is right")
    field.fill("12")
    field.press("Enter")
    expect(page.locator("#left")).to_have_text(str(left - 1))
    hand_back(deployment)
    go_to(page, extraction_id, "paid")
    page.keyboard.press("c")
    page.get_by_label("What is right").select_option("false")
    assert (window.is_too_wide(), window.violations()) == (False, [])
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#left")).to_have_text(str(left - 2))
    found = fields(http, extraction_id)
    assert (found["number"], found["paid"]) == (12, False)
    assert window.complaints == []


def test_items_are_added_and_dropped_by_keyboard(
    window: Window, http: httpx.Client, extraction_id: str, deployment: Any
) -> None:
    page = window.page
    page.on("dialog", lambda dialog: dialog.accept())
    go_to(page, extraction_id, "tags[0]")
    page.keyboard.press("i")
    page.keyboard.type("green")
    page.keyboard.press("Enter")
    tags = page.get_by_role("list", name="Items of tags")
    expect(tags).to_contain_text("green")
    page.keyboard.press("d")
    expect(tags.locator("s")).to_have_text("blue")
    expect(page.locator("#path")).not_to_have_text("tags[0]")
    assert (window.is_too_wide(), window.violations()) == (False, [])
    hand_back(deployment)
    go_to(page, extraction_id, "lines")
    page.keyboard.press("c")
    page.get_by_label("name").fill("Nut")
    page.get_by_label("count").fill("x")
    page.get_by_label("count").press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("x is no number, and count is one")
    page.get_by_label("count").fill("3")
    page.get_by_label("count").press("Enter")
    expect(page.get_by_role("list", name="Items of lines")).to_contain_text("name Nut · count 3")
    page.keyboard.press("c")
    expect(page.locator("#path")).not_to_have_text("lines")
    found = fields(http, extraction_id)
    assert (found["tags"], found["lines"]) == (["red", "green"], [{"name": "Nut", "count": 3}])
    assert window.complaints == []


def test_what_another_reviewer_did_meanwhile_is_told_and_nothing_typed_is_lost(
    window: Window, http: httpx.Client, extraction_id: str, deployment: Any
) -> None:
    page = window.page
    go_to(page, extraction_id, "tags[0]")
    page.keyboard.press("i")
    page.keyboard.type("green")
    document_id = json.loads(http.get(f"/v1/extractions/{extraction_id}/results").text)["document_id"]
    of = {"extraction_id": extraction_id, "document_id": document_id, "change": "add"}
    assert http.post("/v1/reviews/items", json={**of, "path": "tags[2]", "value": "grey"}).status_code == 200
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("tags[2] is there already")
    expect(page.get_by_role("list", name="Items of tags")).to_contain_text("grey")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("list", name="Items of tags")).to_contain_text("green")
    path = page.locator("#path").inner_text()
    found = http.get("/v1/reviews", params={"extraction_id": extraction_id, "limit": 100}).json()["data"]
    review = next(each for each in found if each["path"] == path)
    hand_back(deployment)
    assert http.post(f"/v1/reviews/{review['id']}", json={"verdict": "accept"}).status_code == 200
    page.keyboard.press("r")
    expect(page.get_by_role("alert")).to_contain_text("This is the next one")
    expect(page.locator("#path")).not_to_have_text(path)
