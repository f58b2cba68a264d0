"""Write pictures of the dashboard's pages into docs/dashboard: `python -m tests.e2e.dashboard_pictures`.

Shows the service of TOKENMILL_BASE_URL and TOKENMILL_API_KEY in its current state; with TOKENMILL_OPERATOR_KEY also the
operators' pages.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import httpx
from playwright.sync_api import Browser

from tests.e2e.driven import CHROMIUM, DESK, MISSING, PHONE, Appearance, chromium, open_window

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "dashboard"
PAGES = ("/", "/batches", "/submit", "/models", "/pipelines", "/extractions", "/indexes", "/usage")
OPERATOR_PAGES = ("/", "/models", "/tenants", "/log", "/health")
_DRAWN_MILLISECONDS = 1500  # for plots, and the first values of a stream


def main() -> None:
    """Write every page as on a desktop, and the first ones as on a phone in dark mode."""
    if CHROMIUM is None:
        sys.exit(MISSING)
    site = os.environ["TOKENMILL_BASE_URL"].removesuffix("/v1")
    key, operator_key = os.environ["TOKENMILL_API_KEY"], os.environ.get("TOKENMILL_OPERATOR_KEY")
    FOLDER.mkdir(exist_ok=True)
    with chromium() as browser:
        draw(browser, site, key, (*PAGES, *_details(site, key)), look=DESK)
        draw(browser, site, key, PAGES[:2], look=PHONE, suffix="-phone")
        if operator_key is not None:
            paths = (*OPERATOR_PAGES, *_tenant(site, operator_key))
            draw(browser, site, operator_key, paths, look=DESK, suffix="-operator")


def draw(browser: Browser, site: str, key: str, paths: tuple[str, ...], *, look: Appearance, suffix: str = "") -> None:
    """Write the pages as seen with a key."""
    window = open_window(browser, site, key, look)
    for path in paths:
        window.page.goto(path)
        window.page.wait_for_timeout(_DRAWN_MILLISECONDS)
        window.page.screenshot(path=FOLDER / f"{_name(path)}{suffix}.png", full_page=True)


def _name(path: str) -> str:
    """Return the name of a page's picture: `/batches/batch_…` is `batches-one`."""
    parts = path.partition("?")[0].strip("/").split("/")
    return "-".join((parts[0] or "overview", *(("one",) if len(parts) == 2 else ()), *parts[2:]))


def _details(site: str, key: str) -> tuple[str, ...]:
    """Return pages of one batch, one extraction, its review and evaluation, and one index, if they exist."""
    with httpx.Client(base_url=f"{site}/v1", headers={"Authorization": f"Bearer {key}"}) as client:
        batches, extractions, indexes, files = (
            client.get(path).json()["data"]
            for path in ("/batches?limit=100", "/extractions", "/indexes", "/files?purpose=user_data&limit=1000")
        )
        gold = next((one["id"] for one in files if one["filename"].startswith("gold")), "")
        paths = [f"/extractions/{one['id']}/evaluation" for one in extractions if gold]
        query = {"gold_file_id": gold}
        measured = [f"{path}?gold={gold}" for path in paths if client.get(path, params=query).is_success]
    failed = [one for one in batches if one["request_counts"]["failed"]]
    return (
        *(f"/batches/{one['id']}" for one in failed[:1]),
        *(f"/{page}/{one['id']}" for one in extractions[:1] for page in ("extractions", "reviews")),
        *measured[:1],
        *(f"/indexes/{one['id']}" for one in indexes[:1]),
    )


def _tenant(site: str, operator_key: str) -> tuple[str, ...]:
    """Return the page of the newest tenant."""
    with httpx.Client(base_url=f"{site}/v1", headers={"Authorization": f"Bearer {operator_key}"}) as client:
        return (f"/tenants/{client.get('/admin/tenants').json()['data'][-1]['id']}",)


if __name__ == "__main__":
    main()
