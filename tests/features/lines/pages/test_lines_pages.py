"""Tests of the pages of lines: what they show, link to and refuse."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from features.lines.content import Shown, shown
from features.lines.reader import FoundLine
from tests.api.browser import Browser
from tests.api.worker import run, validate

Browse = Callable[[str | None], Browser]


@pytest.fixture
def key(deployment: Any) -> str:
    made: str = deployment.new_key()
    return made


@pytest.fixture
def browser(browse: Browse, key: str) -> Browser:
    return browse(key)


@pytest.fixture
def batch_id(browser: Browser, deployment: Any, input_lines: Callable[..., bytes]) -> str:
    """A batch of 60 lines that has ended; 5 and 59 (from 0) have failed."""
    form = {"purpose": (None, "batch"), "file": ("<i>.jsonl", input_lines(60))}
    file_id = browser.call("POST", "/v1/files", files=form).json()["id"]
    wanted = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    made: str = browser.call("POST", "/v1/batches", json=wanted).json()["id"]
    run(deployment, made, failed=(5, 59), code="engine_failure")
    return made


def numbers(page: str) -> list[int]:
    return [int(number) for number in re.findall(r'/lines/(\d+)[^"]*">', page)]


def test_pages_of_lines_lead_through_the_batch(browser: Browser, batch_id: str) -> None:
    page = browser.get(f"/batches/{batch_id}/lines").text
    assert numbers(page) == list(range(1, 51))
    link = re.search(r'href="([^"]+)">Next lines', page)
    assert link is not None
    following = browser.get(link[1].replace("&amp;", "&")).text
    assert numbers(following) == list(range(51, 61))
    assert "Next lines" not in following
    assert "First lines" in following


def test_a_filter_stays_in_the_links(browser: Browser, batch_id: str) -> None:
    page = browser.get(f"/batches/{batch_id}/lines?show=failed&code=engine_failure&status=&after=").text
    assert numbers(page) == [6, 60]
    one = browser.get(f"/batches/{batch_id}/lines/6?show=failed&code=engine_failure").text
    assert numbers(one) == [60]
    assert "show=failed&amp;code=engine_failure" in one


def test_a_line_is_beside_its_request(browser: Browser, batch_id: str) -> None:
    page = browser.get(f"/batches/{batch_id}/lines/6").text
    assert "hello" in page
    assert "engine_failure" in page
    assert "line-5" in page


@pytest.mark.parametrize("path", ["/lines", "/lines/6"])
def test_pages_are_made_of_lines_beside_the_event_loop(
    browser: Browser, batch_id: str, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    loops: list[object] = []

    def recorded(line: FoundLine) -> Shown:
        loops.append(asyncio._get_running_loop())
        return shown(line)

    monkeypatch.setattr("features.lines.schemas.shown", recorded)
    assert browser.get(f"/batches/{batch_id}{path}").status_code == 200
    assert set(loops) == {None}


def test_a_batch_links_to_its_lines_and_its_codes(browser: Browser, batch_id: str) -> None:
    page = browser.get(f"/batches/{batch_id}").text
    assert f'href="/batches/{batch_id}/lines"' in page
    assert f"/batches/{batch_id}/lines?show=failed&amp;code=engine_failure" in page


def test_a_batch_without_results_yet_says_so(
    browser: Browser, deployment: Any, input_lines: Callable[..., bytes]
) -> None:
    form = {"purpose": (None, "batch"), "file": ("in.jsonl", input_lines(2))}
    file_id = browser.call("POST", "/v1/files", files=form).json()["id"]
    wanted = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    made = browser.call("POST", "/v1/batches", json=wanted).json()["id"]
    validate(deployment, made)
    assert "in progress" in browser.get(f"/batches/{made}/lines").text
    assert f"/batches/{made}/lines" not in browser.get(f"/batches/{made}").text


def test_what_is_not_there_is_a_page_that_says_so(browser: Browser, batch_id: str) -> None:
    assert browser.get(f"/batches/{batch_id}/lines?code=none").status_code == 200
    assert browser.get(f"/batches/{batch_id}/lines/61").status_code == 404
    assert browser.get(f"/batches/{batch_id}/lines/0").status_code == 400
    assert browser.get(f"/batches/{batch_id}/lines?status=1").status_code == 400
    output = browser.get(f"/v1/batches/{batch_id}").json()["output_file_id"]
    browser.call("DELETE", f"/v1/files/{output}")
    assert browser.get(f"/batches/{batch_id}/lines").status_code == 410


def test_lines_are_their_tenants_alone(
    browser: Browser, browse: Browse, deployment: Any, operator_key: str, *, batch_id: str
) -> None:
    stranger, operator = browse(deployment.new_key()), browse(operator_key)
    for path in (f"/batches/{batch_id}/lines", f"/batches/{batch_id}/lines/1"):
        assert stranger.get(path).status_code == 404
        assert operator.get(path).status_code == 403
        assert browse(None).get(path).status_code == 303
    assert f"/batches/{batch_id}/lines" not in operator.get(f"/batches/{batch_id}").text
