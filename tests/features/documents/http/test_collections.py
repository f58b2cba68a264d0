"""Tests of collections over HTTP: documents from files and stores, each once, and separate by tenant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from features.pipelines import stores
from jobs.accounts.keys import authenticate


def upload(http: httpx.Client, name: str = "a.pdf", *, purpose: str = "user_data", content: bytes = b"%PDF-") -> str:
    answer = http.post("/v1/files", data={"purpose": purpose}, files={"file": (name, content)})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def collect(http: httpx.Client, *file_ids: str) -> str:
    collection_id = str(http.post("/v1/collections", json={"name": "invoices"}).json()["id"])
    if file_ids:
        added = http.post(f"/v1/collections/{collection_id}/documents", json={"file_ids": list(file_ids)})
        assert added.status_code == 200, added.text
    return collection_id


def test_a_collection_is_made_shown_listed_and_deleted(http: httpx.Client) -> None:
    made = http.post("/v1/collections", json={"name": "invoices", "metadata": {"of": "2026"}}).json()
    assert (made["name"], made["num_documents"], made["metadata"]) == ("invoices", 0, {"of": "2026"})
    assert http.get(f"/v1/collections/{made['id']}").json() == made
    assert http.get("/v1/collections").json()["data"] == [made]
    assert http.delete(f"/v1/collections/{made['id']}").json()["deleted"] is True
    assert http.get(f"/v1/collections/{made['id']}").status_code == 404
    assert http.get("/v1/collections").json()["data"] == []


def test_documents_are_files_each_once_in_the_order_in_which_they_came(http: httpx.Client) -> None:
    first, second = upload(http, "b.pdf"), upload(http, "a.pdf")
    collection_id = collect(http, first, first)
    url = f"/v1/collections/{collection_id}/documents"
    added = http.post(url, json={"file_ids": [second, first]}).json()["data"]
    assert sorted(each["file_id"] for each in added) == sorted([first, second])
    page = http.get(url, params={"limit": 1}).json()
    assert ([each["name"] for each in page["data"]], page["has_more"]) == (["b.pdf"], True)
    rest = http.get(url, params={"after": page["last_id"]}).json()
    assert ([each["name"] for each in rest["data"]], rest["has_more"]) == (["a.pdf"], False)
    shown = rest["data"][0]
    assert (shown["file_id"], shown["bytes"], shown["sha256"], shown["error"]) == (second, 5, None, None)
    assert http.get(f"{url}/{shown['id']}").json() == shown
    assert http.get(f"/v1/collections/{collection_id}").json()["num_documents"] == 2


def test_a_document_goes_and_its_file_stays_and_may_be_added_again(http: httpx.Client) -> None:
    file_id = upload(http)
    url = f"/v1/collections/{collect(http, file_id)}/documents"
    document_id = http.get(url).json()["data"][0]["id"]
    assert http.delete(f"{url}/{document_id}").json()["deleted"] is True
    assert http.get(f"{url}/{document_id}").status_code == 404
    assert http.get(url).json()["data"] == []
    assert http.get(f"/v1/files/{file_id}").status_code == 200
    assert http.post(url, json={"file_ids": [file_id]}).json()["data"][0]["id"] != document_id


def test_a_document_may_have_another_name_than_its_file(http: httpx.Client) -> None:
    collection_id = collect(http)
    url = f"/v1/collections/{collection_id}/documents"
    named = [{"file_id": upload(http, "1.pdf"), "name": "papers/a.pdf"}, {"file_id": upload(http), "name": "b\n" * 9}]
    added = http.post(url, json={"files": named})
    assert added.status_code == 200, added.text
    assert [each["name"] for each in http.get(url).json()["data"]] == [each["name"] for each in named]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "file_ids"),
        ({"store": "papers"}, 400, "file_ids"),
        ({"file_ids": ["file_none"]}, 404, "file_ids"),
        ({"file_ids": ["file_none"], "store": "papers", "prefix": ""}, 400, "store"),
        ({"file_ids": ["file_none"], "files": [{"file_id": "file_none", "name": "a"}]}, 400, "files"),
        ({"files": [{"file_id": "file_none", "name": "a"}]}, 404, "file_ids"),
        ({"store": "papers", "prefix": ""}, 404, "store"),
    ],
)
def test_what_is_no_source_of_documents_is_refused(
    http: httpx.Client, body: dict[str, Any], status: int, param: str
) -> None:
    answer = http.post(f"/v1/collections/{collect(http)}/documents", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def test_a_file_for_something_else_is_no_document(http: httpx.Client) -> None:
    file_id = upload(http, "in.jsonl", purpose="batch", content=b"{}\n")
    answer = http.post(f"/v1/collections/{collect(http)}/documents", json={"file_ids": [file_id]})
    assert answer.status_code == 400
    assert "user_data" in answer.json()["error"]["message"]


def test_documents_come_from_a_store_below_a_prefix(deployment: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("in/a.pdf", "in/b.txt", "other.pdf"):
        (tmp_path / name).write_bytes(b"12345678")
    key = deployment.new_key()
    with Session(deployment.engine) as session, session.begin():
        tenant_id = authenticate(session, key).owner().id
        stores.add_store(session, tenant_id, "papers", f"file://{tmp_path}", options={}, is_writable=False)
    with httpx.Client(base_url=deployment.url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as http:
        url = f"/v1/collections/{collect(http)}/documents"
        added = http.post(url, json={"store": "papers", "prefix": "in/"}).json()["data"]
        assert [(each["store"], each["key"], each["bytes"]) for each in added] == [
            ("papers", "in/a.pdf", 8),
            ("papers", "in/b.txt", 8),
        ]
        (tmp_path / "in/a.pdf").write_bytes(b"123")
        again = http.post(url, json={"store": "papers", "prefix": "in/"}).json()["data"]
        assert [(each["id"], each["bytes"]) for each in again] == [(added[0]["id"], 3), (added[1]["id"], 8)]
        refused = http.post(url, json={"store": "papers", "prefix": "nothing/"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "store_missing")


def test_no_tenant_sees_anothers_collections_or_documents(http: httpx.Client, deployment: Any) -> None:
    file_id = upload(http)
    collection_id = collect(http, file_id)
    url = f"/v1/collections/{collection_id}/documents"
    document_id = http.get(url).json()["data"][0]["id"]
    with httpx.Client(
        base_url=deployment.url, headers={"Authorization": f"Bearer {deployment.new_key()}"}, timeout=120
    ) as other:
        assert other.get("/v1/collections").json()["data"] == []
        for path in (f"/v1/collections/{collection_id}", url, f"{url}/{document_id}"):
            assert other.get(path).status_code == 404
        assert other.post(url, json={"file_ids": [file_id]}).status_code == 404
        assert other.delete(f"{url}/{document_id}").status_code == 404
        assert other.delete(f"/v1/collections/{collection_id}").status_code == 404
        mine = collect(other)
        assert other.post(f"/v1/collections/{mine}/documents", json={"file_ids": [file_id]}).status_code == 404
        assert other.get("/v1/collections", params={"after": collection_id}).status_code == 400
    assert http.get(f"{url}/{document_id}").status_code == 200


def test_limits_say_what_was_given_and_what_is_allowed(deploy: Callable[..., Any]) -> None:
    small = deploy(tenant_collections=1, collection_documents=1, max_document_bytes=6)
    with httpx.Client(base_url=small.url, headers={"Authorization": f"Bearer {small.new_key()}"}, timeout=120) as http:
        url = f"/v1/collections/{collect(http)}/documents"
        second = http.post("/v1/collections", json={"name": "more"})
        assert (second.status_code, second.json()["error"]["code"]) == (429, "too_many_collections")
        one, two = upload(http, "one.txt", content=b"1"), upload(http, "two.txt", content=b"2")
        refused = http.post(url, json={"file_ids": [one, two]}).json()["error"]
        assert refused["code"] == "too_many_documents"
        assert "2 documents, and 1 are allowed" in refused["message"]
        assert http.get(url).json()["data"] == []
        large = http.post(url, json={"file_ids": [upload(http, "large.txt", content=b"1234567")]})
        assert (large.status_code, large.json()["error"]["code"]) == (413, "document_too_large")
    with small.engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM collection_document")) == 0
