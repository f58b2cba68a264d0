"""Tests of what an operator and a tenant do with the dashboard, in a real browser over the whole stack."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect
from sqlalchemy.orm import Session

from features.pipelines import stores
from jobs.accounts.keys import authenticate, create_key
from jobs.database import connect
from lab.extraction.pdf_writer import PdfPage, Words, write_pdf
from tests.e2e.driven import CHROMIUM, DESK, MISSING, PHONE, Appearance, Window, chromium, open_window

pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason=MISSING)]

SLOW = 90_000  # milliseconds for something that a worker has to do
RECEIPT = "RECEIPT | 44491 | 2024-09-28\nSeller | Farvenen Chemicals Ltd\n10 x Folders 400.50\nTotal | 400.50 USD"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def site(stack: Any) -> str:
    return str(stack.base_url).removesuffix("/v1")


@pytest.fixture(scope="module")
def window(browser: Browser, site: str, stack: Any) -> Window:
    return open_window(browser, site, stack.api_key)


@pytest.fixture(scope="module")
def operator_key(stack: Any) -> str:
    engine = connect(stack.database_url())
    with Session(engine) as session, session.begin():
        key = create_key(session, None)[1]
    engine.dispose()
    return key


@pytest.fixture
def page(window: Window) -> Page:
    return window.page


def line(number: int, content: str) -> str:
    messages = [{"role": "system", "content": "Extract the fields as JSON."}, {"role": "user", "content": content}]
    body = {"model": "demo", "temperature": 0, "max_tokens": 64, "messages": messages}
    return json.dumps({"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body})


def test_a_file_is_dropped_estimated_started_and_watched(page: Page, window: Window, tmp_path: Path) -> None:
    lines = [line(n, RECEIPT.replace("44491", str(n))) for n in range(5)] + [line(9, "far too long " * 2000)]
    file = tmp_path / "requests.jsonl"
    file.write_text("\n".join([*lines, "{broken"]) + "\n", encoding="utf-8")
    page.get_by_role("link", name="Submit", exact=True).click()
    page.get_by_label("Drop files here").set_input_files(file)
    expect(page.get_by_text("1 is invalid")).to_be_visible(timeout=SLOW)
    expect(page.locator("#invalid-lines td").first).to_have_text("7")
    expect(page.get_by_role("button", name="Start the batch")).to_be_disabled()
    page.get_by_label("Invalid lines").first.select_option("skip")
    page.get_by_role("button", name="Start the batch").click()
    expect(page).to_have_url(re.compile("/batches/batch_"))
    expect(page.get_by_role("heading", level=1)).to_have_text("requests.jsonl")
    expect(page.locator(".pill").first).to_have_text("completed with failures", timeout=SLOW)
    expect(page.get_by_text("Failed lines by code")).to_be_visible()
    assert window.complaints == []


def test_failed_lines_are_tried_again_from_the_page(page: Page, window: Window) -> None:
    first = page.url
    page.get_by_role("button", name="Retry failed lines").click()
    expect(page.get_by_text("Retry of")).to_be_visible(timeout=SLOW)
    assert page.url != first
    assert window.complaints == []


def test_answers_come_down_with_the_sessions_key(page: Page) -> None:
    page.goto("/batches?show=ended")
    page.get_by_role("link", name=re.compile("batch_")).last.click()
    with page.expect_download() as coming:
        page.get_by_role("link", name="Download answers").click()
    answers = coming.value.path().read_text(encoding="utf-8").splitlines()
    assert len(answers) == 5
    assert "Farvenen Chemicals Ltd" in answers[0]


def test_what_cannot_be_submitted_is_told(page: Page, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for file in files:
        file.write_text("{}", encoding="utf-8")
    page.goto("/submit")
    page.get_by_label("Drop files here").set_input_files(files)
    expect(page.get_by_role("alert")).to_contain_text("give one at a time")


@pytest.mark.parametrize(("verdict", "is_told"), [("refused", True), ("fails", True), ("accepted", False)])
def test_a_batch_that_would_be_refused_is_not_started_and_the_page_says_why(
    page: Page, tmp_path: Path, verdict: str, *, is_told: bool
) -> None:
    def answer(route: Route) -> None:
        said = route.fetch()
        route.fulfill(response=said, json=said.json() | {"verdict": verdict, "reason": "You have no room."})

    file = tmp_path / "requests.jsonl"
    file.write_text(line(0, RECEIPT), encoding="utf-8")
    page.route("**/v1/estimates", answer)
    try:
        page.goto("/submit")
        page.get_by_label("Drop files here").set_input_files(file)
        expect(page.locator("#estimate")).to_be_visible(timeout=SLOW)
        expect(page.get_by_text("You have no room.")).to_be_visible(visible=is_told)
        expect(page.get_by_role("button", name="Start the batch")).to_be_enabled(enabled=not is_told)
    finally:
        page.unroute("**/v1/estimates")


def test_files_that_are_chosen_while_others_upload_take_their_place(page: Page, window: Window, tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    first.write_text(line(1, RECEIPT) + "\n", encoding="utf-8")
    second.write_text("".join(f"{line(n, RECEIPT)}\n" for n in range(2)), encoding="utf-8")
    held = list[Route]()

    def hold_until_both_upload(route: Route) -> None:
        held.append(route)
        if len(held) == 2:
            for one in held:
                one.continue_()

    page.goto("/submit")
    page.route("**/v1/files", hold_until_both_upload, times=2)
    for file in (first, second):
        with page.expect_request("**/v1/files"):
            page.get_by_label("Drop files here").set_input_files(file)
    expect(page.locator("[data-of=requests]")).to_have_text("2")
    expect(page.locator("#sent-name")).to_have_text("second.jsonl")
    assert window.complaints == []


def test_a_table_becomes_a_batch_through_a_prompt(page: Page, window: Window, tmp_path: Path) -> None:
    table = tmp_path / "receipts.csv"
    table.write_text('paper,"the name"\n"RECEIPT | 44491",first\n"RECEIPT | 44492",second\n', encoding="utf-8")
    page.goto("/submit")
    page.get_by_label("Drop files here").set_input_files(table)
    expect(page.locator("#rows td").first).to_have_text("RECEIPT | 44491")
    page.get_by_role("button", name="paper").click()
    page.get_by_role("button", name="the name").click()
    expect(page.get_by_label("Prompt of every row")).to_have_value('{{ paper }}{{ row["the name"] }}')
    page.get_by_label("Most tokens").fill("8")
    page.get_by_role("button", name="Make the requests").click()
    expect(page.get_by_text("2 of 2 rows became requests")).to_be_visible()
    expect(page.locator("#first")).to_have_text("user:\nRECEIPT | 44491first")
    expect(page.get_by_role("button", name="Start the batch")).to_be_enabled()
    assert window.violations() == []
    page.get_by_label("Prompt of every row").fill("{{ papr }}")
    expect(page.get_by_role("button", name="Start the batch")).to_be_hidden()
    page.get_by_role("button", name="Make the requests").click()
    expect(page.get_by_role("alert")).to_contain_text("Its columns are: paper, the name")
    expect(page.get_by_role("button", name="Start the batch")).to_be_hidden()
    assert [one for one in window.complaints if "400" not in one] == []
    window.complaints.clear()  # the browser itself logs a refusal


def test_doubtful_values_are_reviewed_by_keyboard(page: Page, window: Window, tmp_path: Path) -> None:
    said = ("INVOICE", "Vendor: Ash Ltd", "Number: 7", "Total: 9.00")
    words = tuple(Words(x=72, y=72 + 20 * n, text=text) for n, text in enumerate(said))
    paper = tmp_path / "invoice.pdf"
    paper.write_bytes(write_pdf([PdfPage(words=words)]))
    note = tmp_path / "note.txt"
    note.write_text("\n".join(said), encoding="utf-8")
    page.goto("/submit")
    page.get_by_label("Drop files here").set_input_files([paper, note])
    page.get_by_role("button", name="Extract the fields").click()
    expect(page.locator(".pill").first).to_have_text("completed", timeout=SLOW)
    page.get_by_role("link", name=re.compile("Review .* value")).click()
    left = page.locator("#left")
    expect(page.locator("#value")).not_to_be_empty()
    before = int(left.inner_text())
    for key in ("a", "r")[: min(2, before)]:
        seen = int(left.inner_text())
        expect(page.locator("#page:visible, #text:visible, #no-page:visible")).to_have_count(1)
        page.keyboard.press(key)
        expect(left).to_have_text(str(seen - 1))
    assert window.complaints == []


def test_an_index_is_searched_and_leads_to_the_text(page: Page, window: Window, site: str, stack: Any) -> None:
    with httpx.Client(base_url=site, headers={"Authorization": f"Bearer {stack.api_key}"}, timeout=60) as http:
        ids = [
            http.post("/v1/files", data={"purpose": "user_data"}, files={"file": (name, content)}).json()["id"]
            for name, content in (("boats.txt", b"The ferry leaves the harbour."), ("trees.txt", b"Oaks grow slowly."))
        ]
        collection = http.post("/v1/collections", json={"name": "notes"}).json()["id"]
        http.post(f"/v1/collections/{collection}/documents", json={"file_ids": ids})
        http.post("/v1/indexes", json={"collection_id": collection, "name": "Notes"})
    page.get_by_role("link", name="Indexes").click()
    page.get_by_role("link", name="Notes").click()
    expect(page.locator(".pill").first).to_have_text("completed", timeout=SLOW)
    page.get_by_label("Question").fill("harbour")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#passages li")).to_have_count(1)
    assert window.violations() == []
    page.get_by_role("link", name="boats.txt").click()
    expect(page.locator("mark")).to_have_text("The ferry leaves the harbour.")
    assert window.violations() == window.complaints == []


def test_a_pipeline_is_run_from_its_page(page: Page, window: Window, site: str, stack: Any, tmp_path: Path) -> None:
    engine = connect(stack.database_url())
    with Session(engine) as session, session.begin():
        tenant_id = authenticate(session, stack.api_key).owner().id
        stores.add_store(session, tenant_id, "papers", f"file://{tmp_path}", options={}, is_writable=True)
    engine.dispose()
    step = {
        "name": "fields",
        "source": {"store": "papers", "keys": "in/*.jsonl"},
        "prompt": "Read {{ text }}",
        "model": "demo",
        "output": {"store": "papers", "keys": "{pipeline}/{date}/part-{n}.jsonl"},
    }
    with httpx.Client(base_url=site, headers={"Authorization": f"Bearer {stack.api_key}"}) as http:
        assert http.post("/v1/pipelines", json={"name": "receipts", "steps": [step]}).status_code == 200
    page.goto("/pipelines")
    page.get_by_role("button", name="Run now").click()
    page.wait_for_url("**/pipelines/runs/*")
    assert window.complaints == []


def test_a_list_that_has_the_focus_waits_until_it_leaves(page: Page, site: str, stack: Any) -> None:
    page.goto("/batches")
    first = page.locator("tbody tr").first
    lines = first.locator(".wide")
    before, layout = lines.inner_text(), str(page.locator("body").get_attribute("data-layout"))
    page.get_by_role("group", name="Table of batches").focus()
    with httpx.Client(base_url=site, headers={"Authorization": f"Bearer {stack.api_key}"}, timeout=60) as http:
        files = {"file": ("seven.jsonl", "\n".join(line(n, RECEIPT) for n in range(7)).encode())}
        file_id = http.post("/v1/files", data={"purpose": "batch"}, files=files).json()["id"]
        wish = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        made = http.post("/v1/batches", json=wish).json()["id"]
    expect(page.locator("body")).not_to_have_attribute("data-layout", layout)
    other = page.context.new_page()
    other.goto(f"/batches/{made}")
    expect(other.locator(".pill").first).to_have_text("completed", timeout=SLOW)
    other.close()
    assert lines.inner_text() == before  # no other batch's numbers next to its id
    page.get_by_role("link", name="Usage").focus()
    expect(first).to_contain_text(made)


def test_a_page_that_is_newer_than_what_is_told_is_asked_for_once(page: Page) -> None:
    asked = list[str]()
    told = "".join(f"data: {json.dumps({'layout': 'older', 'values': {'0.lines': n}})}\n\n" for n in ("1", "2", "3"))
    page.route("**/live/batches*", lambda route: route.fulfill(content_type="text/event-stream", body=told))
    page.on("request", lambda request: asked.append(request.url) if request.resource_type == "fetch" else None)
    with page.expect_response(lambda answer: answer.request.resource_type == "fetch"):
        page.goto("/batches")
    page.unroute("**/live/batches*")
    assert [url.partition("?")[0].rpartition("/")[2] for url in asked] == ["batches"]
    expect(page.locator("tbody tr").first.locator(".wide > span").first).to_have_text(re.compile(r"\d+ / \d+"))


def test_pages_are_read_on_a_phone_without_scrolling_sideways(
    browser: Browser, site: str, stack: Any, operator_key: str
) -> None:
    wide = "tables => tables.filter(one => one.scrollWidth > one.clientWidth).map(one => one.ariaLabel)"

    def look_at(page: Page, paths: tuple[str, ...]) -> None:
        for path in paths:
            page.goto(path)
            assert (path, page.locator(".scroll").evaluate_all(wide)) == (path, [])
            expect(page.locator(".side [aria-current]")).to_be_in_viewport(ratio=1)

    operator = open_window(browser, site, operator_key, PHONE).page
    look_at(operator, ("/models", "/tenants", "/usage", "/log", "/health"))
    operator.goto("/tenants")
    tenant = operator.get_by_role("table").get_by_role("link").first.get_attribute("href")
    look_at(operator, (str(tenant),))
    operator.context.close()
    page = open_window(browser, site, stack.api_key, PHONE).page
    look_at(
        page,
        ("/", "/models", "/pipelines", "/reports", "/extractions", "/indexes", "/usage", "/usage?by=batch", "/batches"),
    )
    expect(page.locator("tbody tr").first.locator("td[data-label=Class]")).to_be_in_viewport()
    page.context.close()


def test_an_operator_sets_limits_and_budgets(browser: Browser, site: str, operator_key: str) -> None:
    window = open_window(browser, site, operator_key)
    page = window.page
    page.get_by_role("link", name="Tenants").click()
    page.get_by_role("table").get_by_role("link").first.click()
    for given in ("7", ""):
        page.get_by_label("Open batches").fill(given)
        page.get_by_role("button", name="Change").click()
        expect(page.get_by_label("Open batches")).to_have_js_property("defaultValue", given)
    page.get_by_label("At most").fill("0.4")
    page.get_by_role("button", name="Set the budget").click()
    expect(page.get_by_role("alert")).to_contain_text("limit")
    page.locator("[name=unit]").select_option("micros")
    page.get_by_label("At most").fill("1.1")
    page.get_by_label("Days begin in").fill("Europe/Nowhere")
    page.get_by_role("button", name="Set the budget").click()
    expect(page.get_by_role("alert")).to_contain_text("Europe/Nowhere")
    page.get_by_label("Days begin in").fill("Europe/Berlin")
    page.get_by_role("button", name="Set the budget").click()
    expect(page.get_by_role("cell", name="1.10").first).to_be_visible()
    page.once("dialog", lambda asked: asked.accept())
    page.get_by_role("button", name="Take away").click()
    expect(page.get_by_role("cell", name="1.10")).to_have_count(0)
    assert [said for said in window.complaints if "400" not in said] == []
    page.context.close()


@pytest.mark.parametrize("look", [DESK, PHONE], ids=["desk", "phone"])
def test_every_page_can_be_read_by_everybody(
    look: Appearance, browser: Browser, site: str, stack: Any, operator_key: str
) -> None:
    everybodys = ["/", "/batches", "/models", "/usage", "/sessions"]
    pages = {
        stack.api_key: [*everybodys, "/submit", "/pipelines", "/reports", "/extractions", "/indexes"],
        operator_key: [*everybodys, "/tenants", "/log", "/health"],
    }
    broken = []
    for key, paths in pages.items():
        window = open_window(browser, site, key, look)
        found = httpx.get(f"{site}/v1/batches", headers={"Authorization": f"Bearer {stack.api_key}"}).json()["data"]
        for path in [*paths, f"/batches/{found[-1]['id']}"]:
            window.page.goto(path)
            if window.violations() or window.is_too_wide() or window.complaints:
                broken.append((path, window.violations(), window.is_too_wide(), window.complaints[:]))
        window.page.context.close()
    assert broken == []


def test_signing_out_ends_the_session(page: Page) -> None:
    page.goto("/")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    page.goto("/batches")
    expect(page.get_by_label("API key")).to_be_visible()
