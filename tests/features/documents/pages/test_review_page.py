"""Tests of the page of reviews in a real browser: typing, corrections, items added and dropped, two reviewers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from features.documents.extraction.scoring import reviews
from tests.e2e.driven import CHROMIUM, MISSING, PHONE, Window, chromium, open_window
from tests.features.documents.http.extracting import completed_extraction

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
    """An extraction of one document; all its values are reviewed."""
    monkeypatch.setattr(reviews, "SAMPLED", 1.0)
    return completed_extraction(http, deployment, SCHEMA, PAPER)


@pytest.fixture
def window(browser: Browser, deployment: Any, http: httpx.Client) -> Iterator[Window]:
    """A phone of the owner of `http`."""
    key = http.headers["authorization"].removeprefix("Bearer ")
    found = open_window(browser, deployment.url, key, PHONE)
    yield found
    found.page.context.close()


def go_to(page: Page, deployment: Any, extraction_id: str, path: str) -> None:
    """Open the page at one value; until it is there, the others are claimed by someone else."""
    with deployment.engine.begin() as connection:
        others = "UPDATE review SET claimed_until = clock_timestamp() + interval '1 hour' WHERE path <> %(path)s"
        connection.exec_driver_sql(others, {"path": path})
        connection.exec_driver_sql("UPDATE review SET claimed_until = NULL WHERE path = %(path)s", {"path": path})
    page.goto(f"/reviews/{extraction_id}")
    expect(page.locator("#path")).to_have_text(path)
    expect(page.locator("#lists section")).to_have_count(2)
    hand_back(deployment)


def ask(http: httpx.Client, method: str, url: str, **more: Any) -> httpx.Response:
    """Retry until the page frees a place: it reads concurrently."""
    while (answer := http.request(method, url, **more)).status_code == 429:
        pass
    return answer


def result(http: httpx.Client, extraction_id: str) -> dict[str, Any]:
    return dict(json.loads(ask(http, "GET", f"/v1/extractions/{extraction_id}/results").text))


def fields(http: httpx.Client, extraction_id: str) -> dict[str, Any]:
    return dict(result(http, extraction_id)["fields"])


def add_item(http: httpx.Client, extraction_id: str, path: str, value: Any) -> None:
    of = {"extraction_id": extraction_id, "document_id": result(http, extraction_id)["document_id"]}
    body = {**of, "change": "add", "path": path, "value": value}
    assert ask(http, "POST", "/v1/reviews/items", json=body).status_code == 200


def serious(window: Window) -> list[str]:
    """Return the page's errors, except for too many requests at once, which it retries."""
    return [said for said in window.complaints if "429" not in said]


def hand_back(deployment: Any) -> None:
    """End every claim as by time: a reloaded page claims again."""
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE review SET claimed_until = NULL")


def test_a_number_is_typed_as_one_and_a_choice_chosen(
    window: Window, http: httpx.Client, extraction_id: str, deployment: Any
) -> None:
    page = window.page
    go_to(page, deployment, extraction_id, "number")
    expect(page.locator("nav [aria-current=page]")).to_have_text("Extraction")
    expect(page.locator("#score")).to_have_text(re.compile(r"(low|medium|high), [01]\.\d\d"))
    left = int(page.locator("#left").inner_text())
    page.keyboard.press("c")
    page.keyboard.type("12.5")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("12.5 is no whole number")
    field = page.get_by_label("What is right")
    field.fill("12")
    field.press("Enter")
    expect(page.locator("#left")).to_have_text(str(left - 1))
    go_to(page, deployment, extraction_id, "paid")
    page.keyboard.press("c")
    page.get_by_label("What is right").select_option("false")
    assert (window.is_too_wide(), window.violations()) == (False, [])
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#left")).to_have_text(str(left - 2))
    found = fields(http, extraction_id)
    assert (found["number"], found["paid"]) == (12, False)
    assert serious(window) == []


def test_an_answer_that_stands_nowhere_is_shown_beside_null_and_can_be_taken_over(
    window: Window, http: httpx.Client, deployment: Any
) -> None:
    page, extraction_id = window.page, completed_extraction(http, deployment, SCHEMA, b"vendor: FLAKY Ltd")
    go_to(page, deployment, extraction_id, "vendor")
    expect(page.locator("#value")).to_contain_text("nowhere to be found")
    assert fields(http, extraction_id)["vendor"] is None
    left = int(page.locator("#left").inner_text())
    page.keyboard.press("c")
    expect(page.get_by_label("What is right")).to_have_value("nowhere to be found")
    page.keyboard.press("Enter")
    expect(page.locator("#left")).to_have_text(str(left - 1))
    assert fields(http, extraction_id)["vendor"] == "nowhere to be found"
    assert serious(window) == []


def test_items_are_added_and_dropped_by_keyboard(
    window: Window, http: httpx.Client, extraction_id: str, deployment: Any
) -> None:
    page = window.page
    page.on("dialog", lambda dialog: dialog.accept())
    go_to(page, deployment, extraction_id, "tags[0]")
    page.keyboard.press("i")
    page.keyboard.type("green")
    page.keyboard.press("Enter")
    tags = page.get_by_role("list", name="Items of tags")
    expect(tags).to_contain_text("green")
    page.keyboard.press("d")
    expect(tags.locator("s")).to_have_text("blue")
    expect(page.locator("#path")).not_to_have_text("tags[0]")
    assert (window.is_too_wide(), window.violations()) == (False, [])
    go_to(page, deployment, extraction_id, "lines")
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
    assert serious(window) == []


def test_what_another_reviewer_did_meanwhile_is_told_and_nothing_typed_is_lost(
    window: Window, http: httpx.Client, extraction_id: str, deployment: Any
) -> None:
    page = window.page
    go_to(page, deployment, extraction_id, "tags[0]")
    page.keyboard.press("i")
    page.keyboard.type("green")
    add_item(http, extraction_id, "tags[2]", "grey")
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


def test_an_item_without_text_is_not_added(
    window: Window, http: httpx.Client, extraction_id: str, deployment: Any
) -> None:
    page = window.page
    go_to(page, deployment, extraction_id, "tags[0]")
    page.keyboard.press("i")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Nothing is given")
    assert fields(http, extraction_id)["tags"] == ["blue", "red"]
    assert serious(window) == []


def test_lists_that_were_refused_are_asked_for_again(window: Window, extraction_id: str) -> None:
    page, held = window.page, list[Route]()
    page.route("**/v1/reviews/items?*", lambda route: route.continue_() if held else held.append(route))
    with page.expect_request("**/v1/reviews/items?*"):
        page.goto(f"/reviews/{extraction_id}")
    page.keyboard.press("i")
    expect(page.get_by_role("alert")).to_contain_text("are not read yet")
    with page.expect_response(lambda answer: answer.status == 429):
        held[0].fulfill(status=429, json={"error": {"message": "Too much at once."}})
    expect(page.locator("#lists section")).to_have_count(2)
    assert serious(window) == []


def test_lists_show_what_a_verdict_was_refused_for(
    window: Window, http: httpx.Client, extraction_id: str, deployment: Any
) -> None:
    page = window.page
    go_to(page, deployment, extraction_id, "lines")
    add_item(http, extraction_id, "lines[0]", {"name": "Nut", "count": 3})
    page.keyboard.press("a")
    expect(page.get_by_role("alert")).to_contain_text("has 1 added item")
    expect(page.get_by_role("list", name="Items of lines")).to_contain_text("name Nut")
    expect(page.locator("#path")).to_have_text("lines")


def test_lists_show_the_value_that_was_corrected(
    window: Window, http: httpx.Client, extraction_id: str, deployment: Any
) -> None:
    page = window.page
    go_to(page, deployment, extraction_id, "tags[0]")
    page.keyboard.press("c")
    field = page.get_by_label("What is right")
    field.fill("navy")
    field.press("Enter")
    expect(page.locator("#path")).not_to_have_text("tags[0]")
    expect(page.get_by_role("list", name="Items of tags")).to_contain_text("navy")
    assert serious(window) == []
