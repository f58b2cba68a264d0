"""Tests of an open page's reaction to messages, in a real browser without a service: it never freezes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

import api.dashboard
from tests.e2e.driven import CHROMIUM, MISSING, chromium

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)

SCRIPT = Path(api.dashboard.__file__).parent / "static" / "dashboard.js"
AGAIN = 6000  # milliseconds, as in the script
STREAMS = """
    window.streams = [];
    window.EventSource = class {
        static CLOSED = 2;
        constructor() { streams.push(this); }
        close() {}
    };
"""


class Site:
    """Answers a page with its current rows; while it holds answers they wait in `held`."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.layout = "first"
        self.status = 200
        self.holds = False
        self.held: list[Route] = []
        page.add_init_script(STREAMS)
        page.route("http://site/**", self._answer)
        page.clock.install()
        page.goto("http://site/page")
        page.wait_for_function("streams.length === 1")

    def _answer(self, route: Route) -> None:
        if route.request.url.endswith(".js"):
            route.fulfill(content_type="text/javascript", body=SCRIPT.read_text(encoding="utf-8"))
        elif self.holds:
            self.held.append(route)
        else:
            self.give(route, self.layout)

    def give(self, route: Route, layout: str) -> None:
        region = f'<p data-region="all">{layout} <b data-live="n">asked</b></p>'
        script = '<script src="http://site/dashboard.js" type="module"></script>'
        page = f'<body data-stream="/live" data-layout="{layout}">{region}{script}</body>'
        route.fulfill(status=self.status, content_type="text/html", body=page)

    def tell(self, layout: str, n: str) -> None:
        said = {"layout": layout, "values": {"n": n}}
        self.page.evaluate("said => { streams.at(-1).onmessage({ data: JSON.stringify(said) }); }", said)

    def refuse_stream(self) -> None:
        self.page.evaluate("() => { const one = streams.at(-1); one.readyState = 2; one.onerror?.({ target: one }); }")

    def answering(self) -> Any:
        return self.page.expect_response("http://site/page")

    def shows(self, said: str) -> None:
        expect(self.page.locator("p")).to_have_text(said)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def site(browser: Browser) -> Iterator[Site]:
    page = browser.new_page()
    yield Site(page)
    page.close()


def test_a_page_that_was_of_a_passing_moment_is_asked_for_again(site: Site) -> None:
    with site.answering():
        site.tell("told", "1")
    site.shows("first asked")
    site.layout = "told"
    site.tell("told", "2")
    with site.answering():
        site.page.clock.run_for(AGAIN)
    site.shows("told 2")


def test_an_answer_that_was_overtaken_is_dropped(site: Site) -> None:
    site.holds = True
    for layout in ("second", "third"):
        site.tell(layout, "1")
    while len(site.held) < 2:
        site.page.evaluate("0")  # lets requests arrive
    second, third = site.held
    site.give(third, "third")
    site.shows("third 1")
    with site.answering() as late:
        site.give(second, "second")
    late.value.finished()
    site.tell("third", "2")
    site.shows("third 2")


def test_a_page_that_cannot_be_had_stays_and_is_asked_for_again(site: Site) -> None:
    site.page.evaluate("() => { window.isSame = true; }")
    site.status = 503
    with site.answering():
        site.tell("told", "1")
    site.status, site.layout = 200, "told"
    with site.answering():
        site.page.clock.run_for(AGAIN)
    site.shows("told 1")
    assert site.page.evaluate("window.isSame")


def test_a_stream_that_was_refused_is_asked_for_again(site: Site) -> None:
    site.refuse_stream()
    site.layout = "later"
    with site.answering():
        site.page.clock.run_for(AGAIN)
    site.page.wait_for_function("streams.length === 2")
    site.tell("later", "1")
    site.shows("later 1")
