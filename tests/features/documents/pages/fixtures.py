"""An extraction of a browser's tenant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.api.browser import Browser

Browse = Callable[[str | None], Browser]


@pytest.fixture
def extraction_id(browse: Browse, deployment: Any) -> tuple[Browser, str]:
    browser = browse(deployment.new_key())
    token = {"x-csrf-token": browser.token()}
    collection = browser.call("POST", "/v1/collections", json={"name": "papers <i>"}).json()["id"]
    file = browser.post("/v1/files", data={"purpose": "user_data"}, files={"file": ("a.txt", b"no 7")}, headers=token)
    browser.call("POST", f"/v1/collections/{collection}/documents", json={"file_ids": [file.json()["id"]]})
    schema = {"type": "object", "properties": {"number": {"type": "string"}}}
    asked = {"collection_id": collection, "schema": schema, "model": "org/tiny"}
    made = browser.call("POST", "/v1/extractions", json=asked)
    assert made.status_code == 200, made.text
    return browser, made.json()["id"]
