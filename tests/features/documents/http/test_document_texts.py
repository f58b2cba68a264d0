"""Tests of a document's text, read in parts, and separate by tenant."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.features.documents.http.extracting import completed_extraction

SCHEMA = {"type": "object", "properties": {"vendor": {"type": "string"}}}


@pytest.fixture
def document(http: httpx.Client, deployment: Any) -> str:
    """Return the path of a document that an extraction has read."""
    extraction_id = completed_extraction(http, deployment, SCHEMA, "vendor: Ünal 🚢 Ltd\r\ntotal: 3".encode())
    collection_id = http.get(f"/v1/extractions/{extraction_id}").json()["collection_id"]
    documents = f"/v1/collections/{collection_id}/documents"
    return f"{documents}/{http.get(documents).json()['data'][0]['id']}"


def test_parts_of_a_text_are_counted_in_characters(http: httpx.Client, document: str) -> None:
    whole = http.get(f"{document}/text").json()
    assert (whole["text"], whole["num_characters"]) == ("vendor: Ünal 🚢 Ltd\ntotal: 3", 27)
    part = http.get(f"{document}/text", params={"start": 8, "limit": 6}).json()
    assert (part["start"], part["end"], part["text"]) == (8, 14, "Ünal 🚢")
    beyond = http.get(f"{document}/text", params={"start": 99}).json()
    assert (beyond["start"], beyond["end"], beyond["text"]) == (99, 99, "")


def test_what_nobody_has_read_has_no_text(http: httpx.Client) -> None:
    file = http.post("/v1/files", data={"purpose": "user_data"}, files={"file": ("a.txt", b"new")}).json()["id"]
    documents = f"/v1/collections/{http.post('/v1/collections', json={'name': 'papers'}).json()['id']}/documents"
    added = http.post(documents, json={"file_ids": [file]}).json()["data"][0]["id"]
    refused = http.get(f"{documents}/{added}/text")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "document_not_read")


def test_a_text_is_its_tenants(http: httpx.Client, document: str, deployment: Any) -> None:
    stranger = {"Authorization": f"Bearer {deployment.new_key()}"}
    assert http.get(f"{document}/text", headers=stranger).status_code == 404
