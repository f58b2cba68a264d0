"""Tests of indexes on pages: only for their tenant, live while they are built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.api.browser import Browser

Browse = Callable[[str | None], Browser]


def test_an_index_is_its_tenants_and_told_while_it_is_built(
    extraction_id: tuple[Browser, str], browse: Browse, deployment: Any
) -> None:
    browser, extraction = extraction_id
    collection = browser.get(f"/v1/extractions/{extraction}").json()["collection_id"]
    made = browser.call("POST", "/v1/indexes", json={"collection_id": collection, "name": "boats <i>"}).json()["id"]
    for path in ("/indexes", f"/indexes/{made}"):
        page = browser.get(path).text
        assert ("boats &lt;i&gt;" in page, "boats <i>" in page, f"/indexes/{made}" in page) == (True, False, True)
    assert "two bytes each" in page  # the tokenizer of passages
    values = next(browser.events(f"/live/indexes/{made}"))["values"]
    assert (values["flow.state"], "read" in values["flow.why"]) == (["in progress", ""], True)
    stranger = browse(deployment.new_key())
    assert stranger.get(f"/indexes/{made}").status_code == 404
    assert made not in stranger.get("/indexes").text
