"""Tests of list items over HTTP: added and dropped by people, and the effects on results, gold and reviews."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from api.admission import in_flight
from features.documents import record_ranges
from features.documents.extraction.scoring import reviews
from jobs.storage import Storage
from tests.database_roles import as_superuser_do
from tests.features.documents.http.extracting import completed_extraction

TAGS = {"type": "array", "maxItems": 3, "items": {"type": "string"}}
SCHEMA = {"type": "object", "properties": {"vendor": {"type": "string"}, "number": {"type": "integer"}, "tags": TAGS}}
PAPER = b"vendor: Birch Ltd"


@pytest.fixture
def extraction_id(http: httpx.Client, deployment: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """An extraction of one document without answers for number and list; all its values are reviewed."""
    monkeypatch.setattr(reviews, "SAMPLED", 1.0)
    return completed_extraction(http, deployment, SCHEMA, PAPER)


def result(http: httpx.Client, extraction_id: str) -> dict[str, Any]:
    return dict(json.loads(http.get(f"/v1/extractions/{extraction_id}/results").text))


def change(http: httpx.Client, extraction_id: str, how: str, path: str, **more: Any) -> httpx.Response:
    document_id = result(http, extraction_id)["document_id"]
    body = {"extraction_id": extraction_id, "document_id": document_id, "change": how, "path": path, **more}
    return http.post("/v1/reviews/items", json=body)


def counts(measures: dict[str, Any]) -> tuple[int, int, int]:
    return measures["right"], measures["wrong"], measures["missed"]


def review_of(http: httpx.Client, extraction_id: str, path: str) -> dict[str, Any]:
    found = http.get("/v1/reviews", params={"extraction_id": extraction_id, "limit": 100}).json()["data"]
    return next(each for each in found if each["path"] == path)


def test_items_are_added_and_dropped_under_numbers_that_they_keep(http: httpx.Client, extraction_id: str) -> None:
    for number, tag in enumerate(("blue", "read", "green")):
        assert change(http, extraction_id, "add", f"tags[{number}]", value=tag).status_code == 200
    again = change(http, extraction_id, "add", "tags[1]", value="read")
    assert again.status_code == 200
    full = change(http, extraction_id, "add", "tags[3]", value="red")
    assert (full.status_code, "the schema allows 3" in full.json()["error"]["message"]) == (400, True)
    for _ in range(2):
        (tags,) = change(http, extraction_id, "drop", "tags[1]").json()["data"]
    assert [(each["path"], each["value"], bool(each["dropped"])) for each in tags["items"]] == [
        ("tags[0]", "blue", False),
        ("tags[1]", "read", True),
        ("tags[2]", "green", False),
    ]
    assert (tags["next_path"], tags["value_schema"]) == (
        "tags[3]",
        {**TAGS, "items": {"type": "string", "minLength": 1}},
    )
    assert change(http, extraction_id, "add", "tags[3]", value="red").status_code == 200
    told = result(http, extraction_id)
    assert told["fields"]["tags"] == ["blue", "green", "red"]
    assert [(each["item"], each["change"]) for each in told["item_changes"]] == [
        *((f"tags[{number}]", "add") for number in range(3)),
        ("tags[1]", "drop"),
        ("tags[3]", "add"),
    ]
    assert all(each["by"].startswith("key_") and each["at"] > 1e9 for each in told["item_changes"])
    assert http.get(f"/v1/extractions/{extraction_id}/reviews").json()["items"] == {"added": 4, "dropped": 1}
    (line,) = map(json.loads, http.get(f"/v1/extractions/{extraction_id}/gold").text.splitlines())
    assert line["known"] == ["tags[0]", "tags[1]", "tags[2]"]
    measured = http.get(f"/v1/extractions/{extraction_id}/evaluation").json()
    assert counts(measured["fields"]["tags[]"]) == (0, 0, 3)


def test_two_people_who_add_the_same_number_are_told_apart(http: httpx.Client, extraction_id: str) -> None:
    assert change(http, extraction_id, "add", "tags[0]", value="blue").status_code == 200
    refused = change(http, extraction_id, "add", "tags[0]", value="red")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "item_changed")
    assert "tags[1]" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"change": "add", "path": "tags[0]", "value": 7}, "value", "tags[0] cannot be '7': it must be a text,"),
        ({"change": "add", "path": "tags[0]"}, "value", "give it"),
        ({"change": "add", "path": "tags[0]", "value": ""}, "value", "it must be a text, of at least 1 character."),
        ({"change": "drop", "path": "tags[0]", "value": "x"}, "value", "leave it out"),
        ({"change": "add", "path": "tags[1]", "value": "x"}, "path", "the next item is 'tags[0]'"),
        ({"change": "drop", "path": "tags[0]"}, "path", "tags has 0 items"),
        ({"change": "drop", "path": "vendor"}, "path", "its lists are tags[…]"),
        ({"change": "drop", "path": "]["}, "path", "its lists are tags[…]"),
        ({"change": "add", "path": "tags[0]", "value": {"a": "\0"}}, "value", "NUL"),
    ],
)
def test_a_change_that_cannot_be_is_refused(
    http: httpx.Client, extraction_id: str, body: dict[str, Any], param: str, said: str
) -> None:
    error = change(http, extraction_id, body.pop("change"), body.pop("path"), **body)
    assert (error.status_code, error.json()["error"]["param"]) == (400, param), error.text
    assert said in error.json()["error"]["message"]


def test_an_empty_list_is_corrected_with_all_its_items(http: httpx.Client, extraction_id: str) -> None:
    review = review_of(http, extraction_id, "tags")
    url = f"/v1/reviews/{review['id']}"
    for wrong in ("blue", [], ["blue", 7], ["a", "b", "c", "d"]):
        assert http.post(url, json={"verdict": "correct", "value": wrong}).status_code == 400
    assert change(http, extraction_id, "add", "tags[0]", value="blue").status_code == 200
    for body, said in (({"verdict": "accept"}, "1 added item:"), ({"verdict": "correct", "value": ["red"]}, "1 item ")):
        error = http.post(url, json=body).json()["error"]
        assert (error["code"], said in error["message"]) == ("item_changed", True)
    decided = http.post(url, json={"verdict": "correct", "value": ["blue"]}).json()
    assert (decided["verdict"], decided["value"]) == ("correct", ["blue"])
    assert result(http, extraction_id)["fields"]["tags"] == ["blue"]
    (line,) = map(json.loads, http.get(f"/v1/extractions/{extraction_id}/gold").text.splitlines())
    assert (line["fields"]["tags"], "tags" in line["known"]) == (["blue"], True)
    assert http.get(f"/v1/extractions/{extraction_id}/reviews").json()["doubt"]["wrong"] == 1


def test_a_list_that_was_accepted_as_empty_is_wrong_while_an_item_that_was_added_stands(
    http: httpx.Client, extraction_id: str
) -> None:
    def num_wrong() -> int:
        return int(http.get(f"/v1/extractions/{extraction_id}/reviews").json()["doubt"]["wrong"])

    review = review_of(http, extraction_id, "tags")
    assert http.post(f"/v1/reviews/{review['id']}", json={"verdict": "accept"}).status_code == 200
    found = []
    for how, path, more in (
        ("add", "tags[0]", {"value": "blue"}),
        ("add", "tags[1]", {"value": "red"}),
        ("drop", "tags[0]", {}),
        ("drop", "tags[1]", {}),
    ):
        assert change(http, extraction_id, how, path, **more).status_code == 200
        found.append(num_wrong())
    assert found == [1, 1, 1, 0]


def test_the_items_of_a_corrected_list_keep_their_order(
    http: httpx.Client, deployment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviews, "SAMPLED", 1.0)
    schema = {"type": "object", "properties": {"vendor": {"type": "string"}, "tags": {**TAGS, "maxItems": 10}}}
    extraction_id = completed_extraction(http, deployment, schema, PAPER)
    url, tags = f"/v1/reviews/{review_of(http, extraction_id, 'tags')['id']}", [f"t{number}" for number in range(10)]
    for _ in range(2):  # a repetition is not an error
        assert http.post(url, json={"verdict": "correct", "value": tags}).status_code == 200
    told = result(http, extraction_id)
    assert told["fields"]["tags"] == tags
    named = [(each["item"], each["value"]) for each in told["item_changes"]]
    assert named == [(f"tags[{number}]", tag) for number, tag in enumerate(tags)]
    assert change(http, extraction_id, "drop", "tags[0]").status_code == 200
    assert result(http, extraction_id)["fields"]["tags"] == tags[1:]


@pytest.mark.parametrize("depth", [17, 900])
def test_a_value_that_lies_deeper_than_any_schema_is_refused(
    http: httpx.Client, extraction_id: str, depth: int
) -> None:
    value = "[" * depth + "]" * depth
    of = f'"extraction_id": "{extraction_id}", "document_id": "doc_x", "change": "add", "path": "tags[0]"'
    for url, rest in ((review_of(http, extraction_id, "tags")["id"], '"verdict": "correct"'), ("items", of)):
        content = f'{{{rest}, "value": {value}}}'
        refused = http.post(f"/v1/reviews/{url}", content=content, headers={"content-type": "application/json"})
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, "value")
        assert "more than 16 deep" in error["message"]


def test_a_third_change_at_once_waits_for_its_turn(
    http: httpx.Client, extraction_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = {"extraction_id": extraction_id, "document_id": result(http, extraction_id)["document_id"]}
    body = {**of, "change": "add", "path": "tags[0]", "value": "blue"}
    read, has_waited = record_ranges.read_record, threading.Event()

    def noted() -> anyio.Event:
        has_waited.set()
        return anyio.Event()

    def slow(*arguments: Any) -> dict[str, Any]:
        assert has_waited.wait(20)
        return read(*arguments)

    monkeypatch.setattr(in_flight, "anyio", SimpleNamespace(Event=noted))
    monkeypatch.setattr(record_ranges, "read_record", slow)
    with ThreadPoolExecutor(3) as executor:
        adds = [executor.submit(http.post, "/v1/reviews/items", json=body) for _ in range(3)]
    assert [add.result().status_code for add in adds] == [200] * 3


def test_a_number_is_corrected_as_one_and_its_review_says_what_it_may_be(
    http: httpx.Client, extraction_id: str
) -> None:
    review = review_of(http, extraction_id, "number")
    assert review["value_schema"] == {"type": "integer"}
    refused = http.post(f"/v1/reviews/{review['id']}", json={"verdict": "correct", "value": "12"})
    assert refused.json()["error"]["message"] == "'number' cannot be '12': it must be a whole number."
    assert http.post(f"/v1/reviews/{review['id']}", json={"verdict": "correct", "value": 12}).json()["value"] == 12


def test_what_is_looked_at_in_a_dropped_item_is_decided_with_it(
    http: httpx.Client, deployment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviews, "SAMPLED", 1.0)
    extraction_id = completed_extraction(http, deployment, SCHEMA, PAPER + b"\ntags: blue")
    found = http.post("/v1/reviews/claim", json={"extraction_id": extraction_id, "limit": 100}).json()
    review = next(each for each in found["data"] if each["path"] == "tags[0]")
    refused = change(http, extraction_id, "drop", "tags[0]")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "review_claimed")
    assert change(http, extraction_id, "drop", "tags[0]", claim=found["claim"]).status_code == 200
    late = http.post(f"/v1/reviews/{review['id']}", json={"verdict": "accept", "claim": found["claim"]})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "review_decided")
    assert result(http, extraction_id)["fields"]["tags"] == []
    measured = http.get(f"/v1/extractions/{extraction_id}/evaluation").json()
    assert counts(measured["fields"]["tags[]"]) == (0, 1, 0)


@pytest.mark.parametrize("is_noted_late", [False, True])
def test_items_of_a_document_are_read_without_the_records_of_others(
    http: httpx.Client, deployment: Any, monkeypatch: pytest.MonkeyPatch, *, is_noted_late: bool
) -> None:
    extraction_id = completed_extraction(
        http, deployment, SCHEMA, *(PAPER + f"\ntags: t{n}".encode() for n in range(3))
    )
    *_, last = map(json.loads, http.get(f"/v1/extractions/{extraction_id}/results").text.splitlines())
    of = {"extraction_id": extraction_id, "document_id": last["document_id"]}
    with deployment.engine.begin() as connection:
        rows = text("SELECT count(*) FROM record_ranges WHERE extraction_id = :id")
        assert 1 <= connection.scalar(rows, {"id": extraction_id}) <= 3, "a small extraction has few rows"
    if is_noted_late:
        with Session(deployment.engine) as session:
            as_superuser_do(session, f"DELETE FROM record_ranges WHERE extraction_id = '{extraction_id}'")
        assert http.get("/v1/reviews/items", params=of).status_code == 200
    assert http.get("/v1/reviews/items", params={**of, "document_id": "doc_x"}).status_code == 404
    read: list[int] = []
    read_range = Storage.read_range

    def noted(storage: Storage, key: str, start: int, end: int) -> bytes:
        found = read_range(storage, key, start, end)
        read.append(len(found))
        return found

    monkeypatch.setattr(Storage, "read_range", noted)
    (tags,) = http.get("/v1/reviews/items", params=of).json()["data"]
    assert [each["value"] for each in tags["items"]] == ["t2"]
    assert read == [len(json.dumps(last, separators=(",", ":"), ensure_ascii=False).encode()) + 1]


def test_changes_go_with_their_extraction(http: httpx.Client, extraction_id: str, deployment: Any) -> None:
    assert change(http, extraction_id, "add", "tags[0]", value="blue").status_code == 200
    assert http.delete(f"/v1/extractions/{extraction_id}").status_code == 200
    with deployment.engine.begin() as connection:
        left = text("SELECT count(*) FROM item_change WHERE extraction_id = :id")
        assert connection.scalar(left, {"id": extraction_id}) == 0


def test_another_tenant_has_no_such_items(http: httpx.Client, extraction_id: str, deployment: Any) -> None:
    document_id = result(http, extraction_id)["document_id"]
    of = {"extraction_id": extraction_id, "document_id": document_id}
    headers = {"Authorization": f"Bearer {deployment.new_key()}"}
    with httpx.Client(base_url=deployment.url, headers=headers, timeout=120) as other:
        assert other.get("/v1/reviews/items", params=of).status_code == 404
        wish = {**of, "change": "add", "path": "tags[0]", "value": "x"}
        assert other.post("/v1/reviews/items", json=wish).status_code == 404
    assert http.get("/v1/reviews/items", params={**of, "document_id": "doc_x"}).status_code == 404
    assert http.get("/v1/reviews/items", params=of).json()["data"][0]["items"] == []
