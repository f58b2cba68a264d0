"""Tests of extractions, evaluations and documents on pages: only their tenant sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
from sqlalchemy import text
from sqlalchemy.orm import Session

from tests.api.browser import Browser
from tests.features.documents.http.extracting import completed_extraction

Browse = Callable[[str | None], Browser]


def test_an_extraction_is_its_tenants(extraction_id: tuple[Browser, str], browse: Browse, deployment: Any) -> None:
    browser, found = extraction_id
    assert found in browser.get("/extractions").text
    page = browser.get(f"/extractions/{found}")
    assert (page.status_code, "papers &lt;i&gt;" in page.text, "papers <i>" in page.text) == (200, True, False)
    stranger = browse(deployment.new_key())
    assert found not in stranger.get("/extractions").text
    for path in (f"/extractions/{found}", f"/reviews/{found}"):
        assert stranger.get(path).status_code == 404


def test_a_page_outlives_the_collection(extraction_id: tuple[Browser, str], deployment: Any) -> None:
    browser, found = extraction_id
    with Session(deployment.engine) as session, session.begin():
        delete = "UPDATE collection SET deleted_at = now() FROM extraction WHERE collection_id = collection.id"
        session.execute(text(f"{delete} AND extraction.id = :id"), {"id": found})
    page = browser.get(f"/extractions/{found}")
    assert (page.status_code, "papers &lt;i&gt;" in page.text) == (200, True)


def test_what_is_not_completed_has_nothing_to_review(extraction_id: tuple[Browser, str]) -> None:
    browser, found = extraction_id
    assert browser.get(f"/reviews/{found}").status_code == 409


def test_an_evaluation_is_told_by_field_with_its_plots(browse: Browse, deployment: Any) -> None:
    key, gold = deployment.new_key(), b'{"document": "0.txt", "fields": {"vendor": "Elm <b>", "total": "3"}}'
    with httpx.Client(base_url=deployment.url, headers={"Authorization": f"Bearer {key}"}, timeout=120) as http:
        schema = {"type": "object", "properties": {"vendor": {"type": "string"}, "total": {"type": "string"}}}
        found = completed_extraction(http, deployment, schema, b"vendor: Birch Ltd\ntotal: 3")
        file = http.post("/v1/files", data={"purpose": "user_data"}, files={"file": ("<i>.jsonl", gold)}).json()["id"]
    browser = browse(key)
    path = f"/extractions/{found}/evaluation"
    assert path in browser.get(f"/extractions/{found}").text
    early = browser.get(path)
    assert (early.status_code, "Nobody has decided" in early.text) == (200, True)
    page = browser.get(f"{path}?gold={file}").text
    assert ("vendor" in page, "50.0 %" in page, page.count("<svg"), "<i>" in page) == (True, True, 2, False)
    wrong = browser.get(f"{path}?gold=file_x")
    assert (wrong.status_code, "No such File" in wrong.text) == (404, True)
    stranger = browse(deployment.new_key())
    assert stranger.get(f"{path}?gold={file}").status_code == 404
    collection = browser.get(f"/v1/extractions/{found}").json()["collection_id"]
    (document,) = browser.get(f"/v1/collections/{collection}/documents").json()["data"]
    text = f"/collections/{collection}/documents/{document['id']}"
    assert '<mark id="mark">Birch Ltd</mark>' in browser.get(f"{text}?start=8&end=17").text
    assert "<mark" not in browser.get(text).text
    assert stranger.get(text).status_code == 404
