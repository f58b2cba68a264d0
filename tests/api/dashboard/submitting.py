"""Batches submitted by a browser."""

from __future__ import annotations

from tests.api.browser import Browser


def submit(browser: Browser, lines: bytes, **options: str) -> str:
    token = {"x-csrf-token": browser.token()}
    file = browser.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", lines)}, headers=token)
    body = {"input_file_id": file.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    made = browser.call("POST", "/v1/batches", json=body | options)
    assert made.status_code == 200, made.text
    batch_id = made.json()["id"]
    assert isinstance(batch_id, str)
    return batch_id
