"""A real browser under control: Debian's chromium in different appearances, with axe's rules to check pages."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = "needs chromium on PATH, such as Debian's: `apt-get install chromium`"
_AXE = Path(__file__).parent / "browser" / "axe.min.js"
_RUN_AXE = "; axe.run().then(found => JSON.stringify(found.violations.map(one => [one.id, one.nodes[0].html])))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Appearance:
    """A screen, and its owner's preferences."""

    width: int
    scheme: Literal["light", "dark"]


DESK = Appearance(width=1440, scheme="light")
PHONE = Appearance(width=390, scheme="dark")


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass(frozen=True, slots=True)
class Window:
    """An open page, and the errors that it reported."""

    page: Page
    complaints: list[str]

    def violations(self) -> list[Any]:
        """Return the axe rules that the page breaks, each with the first place."""
        session = self.page.context.new_cdp_session(
            self.page
        )  # bypasses the page's own policy, which does not allow such a script
        asked = {"expression": _AXE.read_text(encoding="utf-8") + _RUN_AXE, "awaitPromise": True, "returnByValue": True}
        found: list[Any] = json.loads(session.send("Runtime.evaluate", asked)["result"]["value"])
        return found

    def is_too_wide(self) -> bool:
        """Return whether the page must be scrolled sideways."""
        width = self.page.evaluate("document.documentElement.scrollWidth")
        size = self.page.viewport_size
        assert size is not None
        return bool(width > size["width"])


def open_window(browser: Browser, site: str, key: str, look: Appearance = DESK) -> Window:
    """Open the site in its own browser, signed in with a key."""
    size = ViewportSize(width=look.width, height=900)
    context = browser.new_context(viewport=size, color_scheme=look.scheme, base_url=site)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto("/")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Overview").wait_for()
    return Window(page, complaints)
