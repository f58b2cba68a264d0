"""Tests of reviews over HTTP: listed, claimed, decided, shown in results, used as gold and calibration; by tenant."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from features.documents.extraction.scoring import reviews
from features.documents.reviewing import reviewed
from features.documents.tables import Extraction
from tests.features.documents.answering import FLAKY
from tests.features.documents.http.extracting import completed_extraction

MODEL = "org/tiny"
SCHEMA = {
    "type": "object",
    "properties": {"vendor": {"type": "string", "x-tokenmill": {"weight": 9}}, "total": {"type": "string"}},
}
TAGS = {"type": "array", "items": {"type": "string"}}
LIST_SCHEMA = {"type": "object", "properties": {"vendor": {"type": "string"}, "tags": TAGS}}
DOUBTFUL = f"vendor: Ash {FLAKY} Ltd\ntotal: {FLAKY} 12.50".encode()
SURE = b"vendor: Birch Ltd\ntotal: 3"


@pytest.fixture
def other(deployment: Any) -> Iterator[httpx.Client]:
    """A client of another tenant."""
    headers = {"Authorization": f"Bearer {deployment.new_key()}"}
    with httpx.Client(base_url=deployment.url, headers=headers, timeout=120) as client:
        yield client


@pytest.fixture
def extract(http: httpx.Client, deployment: Any) -> Callable[..., str]:
    return partial(completed_extraction, http, deployment, SCHEMA)


@pytest.fixture
def with_list(http: httpx.Client, deployment: Any) -> str:
    """An extraction in which only a list is doubtful."""
    return completed_extraction(http, deployment, LIST_SCHEMA, SURE)


def listed(http: httpx.Client, extraction_id: str, *, reason: str = "doubt") -> list[dict[str, Any]]:
    answer = http.get("/v1/reviews", params={"extraction_id": extraction_id, "limit": 100})
    assert answer.status_code == 200, answer.text
    return [each for each in answer.json()["data"] if each["reason"] == reason]


def results(http: httpx.Client, extraction_id: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in http.get(f"/v1/extractions/{extraction_id}/results").text.splitlines()]


def decide(http: httpx.Client, review_id: str, **body: Any) -> httpx.Response:
    return http.post(f"/v1/reviews/{review_id}", json=body)


def test_doubtful_values_are_listed_the_costliest_first(http: httpx.Client, extract: Any) -> None:
    extraction_id = extract(DOUBTFUL, SURE)
    found = listed(http, extraction_id)
    assert [(each["document"], each["path"], each["verdict"]) for each in found] == [
        ("0.txt", "vendor", None),
        ("0.txt", "total", None),
    ]
    assert (found[0]["evidence"]["value"], found[0]["evidence"]["answer"]) == (None, "nowhere to be found")
    page = http.get("/v1/reviews", params={"extraction_id": extraction_id, "limit": 1}).json()
    assert ([each["id"] for each in page["data"]], page["has_more"]) == ([found[0]["id"]], True)


def test_a_value_is_one_reviewers_until_the_claim_is_over(http: httpx.Client, extract: Any, deployment: Any) -> None:
    extraction_id = extract(DOUBTFUL)
    body = {"extraction_id": extraction_id, "limit": 1}
    first, second = (http.post("/v1/reviews/claim", json=body).json() for _ in range(2))
    assert [each["data"][0]["path"] for each in (first, second)] == ["vendor", "total"]
    review_id = first["data"][0]["id"]
    for claim in ({}, {"claim": second["claim"]}):
        refused = decide(http, review_id, verdict="accept", **claim)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "review_claimed")
    with deployment.engine.begin() as connection:
        connection.execute(text("UPDATE review SET claimed_until = clock_timestamp() - interval '1 second'"))
    third = http.post("/v1/reviews/claim", json=body).json()
    assert third["data"][0]["id"] == review_id
    assert decide(http, review_id, verdict="accept", claim=first["claim"]).status_code == 409
    assert decide(http, review_id, verdict="accept", claim=third["claim"]).json()["verdict"] == "accept"
    late = decide(http, second["data"][0]["id"], verdict="accept", claim=second["claim"])
    assert late.status_code == 200


def test_a_verdict_is_noted_once(http: httpx.Client, extract: Any) -> None:
    first = listed(http, extraction_id := extract(DOUBTFUL))[0]
    said = decide(http, first["id"], verdict="correct", value="Ash Ltd")
    assert (said.status_code, said.json()["value"]) == (200, "Ash Ltd")
    assert decide(http, first["id"], verdict="correct", value="Ash Ltd").json() == said.json()
    again = decide(http, first["id"], verdict="accept")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "review_decided")
    assert [each["path"] for each in listed(http, extraction_id)] == ["total"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"verdict": "correct"}, "value"),
        ({"verdict": "correct", "value": 7}, "value"),
        ({"verdict": "accept", "value": "x"}, "value"),
        ({"verdict": "maybe"}, "verdict"),
    ],
)
def test_a_verdict_that_cannot_be_is_refused(
    http: httpx.Client, extract: Any, body: dict[str, Any], param: str
) -> None:
    review = listed(http, extract(DOUBTFUL))[0]
    answer = decide(http, review["id"], **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_list_that_no_answer_came_to_is_accepted_as_empty(http: httpx.Client, with_list: str) -> None:
    extraction_id = with_list
    (review,) = listed(http, extraction_id)
    assert (review["path"], review["evidence"]["value"]) == ("tags", [])
    refused = decide(http, review["id"], verdict="correct", value="blue")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "value")
    assert "give all its items as a list" in refused.json()["error"]["message"]
    assert decide(http, review["id"], verdict="accept").json()["value"] == []
    (record,) = results(http, extraction_id)
    assert record["fields"] == {"vendor": "Birch Ltd", "tags": []}
    gold = json.loads(http.get(f"/v1/extractions/{extraction_id}/gold").text)
    assert (gold["fields"], gold["known"]) == (record["fields"], ["tags"])
    assert http.get(f"/v1/extractions/{extraction_id}/evaluation").status_code == 200


def test_a_list_that_has_items_is_rejected_and_its_items_are_nowhere_said_to_be_none(
    http: httpx.Client, with_list: str
) -> None:
    (review,) = listed(http, with_list)
    assert decide(http, review["id"], verdict="reject").json()["value"] is None
    counts = http.get(f"/v1/extractions/{with_list}/reviews").json()["doubt"]
    assert counts == {"open": 0, "decided": 1, "wrong": 1}
    (record,) = results(http, with_list)
    assert record["fields"] == {"vendor": "Birch Ltd", "tags": []}
    told = {each["path"]: each.get("reviewed") for each in record["evidence"]}
    assert (told["tags"]["verdict"], told["tags"]["value"]) == ("reject", None)
    assert http.get(f"/v1/extractions/{with_list}/gold").text == ""
    asked = {"schema": LIST_SCHEMA, "model": MODEL, "examples": with_list}
    asked["collection_id"] = http.get(f"/v1/extractions/{with_list}").json()["collection_id"]
    refused = http.post("/v1/extractions", json=asked)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "too_few_reviews")


@pytest.mark.parametrize("verdict", ["accept", "reject"])
def test_no_calibration_is_made_of_lists(http: httpx.Client, deployment: Any, with_list: str, verdict: str) -> None:
    (review,) = listed(http, with_list)
    decide(http, review["id"], verdict=verdict)
    with Session(deployment.engine) as session:
        extraction = session.get_one(Extraction, with_list)
        assert reviewed.judged(session, extraction) == []


def test_results_show_what_is_right_and_who_said_so_and_keep_what_was_extracted(
    http: httpx.Client, extract: Any
) -> None:
    extraction_id = extract(DOUBTFUL, SURE)
    vendor, total = listed(http, extraction_id)
    before = results(http, extraction_id)
    by = decide(http, vendor["id"], verdict="correct", value="Ash Ltd").json()["decided_by"]
    decide(http, total["id"], verdict="reject")
    after = results(http, extraction_id)
    assert after[0]["fields"] == {"vendor": "Ash Ltd", "total": None}
    told = after[0]["evidence"][0]
    assert (told["value"], told["reviewed"]["value"], told["reviewed"]["by"]) == (None, "Ash Ltd", by)
    assert told["answer"] == "nowhere to be found"
    assert by.startswith("key_")
    assert after[1] == before[1]


@pytest.mark.parametrize("verdict", ["accept", "reject"])
def test_null_is_right_where_what_was_answered_stands_nowhere_by_either_verdict(
    http: httpx.Client, extract: Any, verdict: str
) -> None:
    extraction_id = extract(DOUBTFUL)
    vendor = listed(http, extraction_id)[0]
    assert decide(http, vendor["id"], verdict=verdict).json()["value"] is None
    told = http.get(f"/v1/extractions/{extraction_id}/reviews").json()["doubt"]
    assert (told["decided"], told["wrong"]) == (1, 0)
    assert results(http, extraction_id)[0]["fields"]["vendor"] is None


def test_decisions_are_gold_of_what_was_looked_at(http: httpx.Client, extract: Any) -> None:
    extraction_id = extract(SURE, DOUBTFUL)
    assert http.get(f"/v1/extractions/{extraction_id}/gold").text == ""
    vendor = listed(http, extraction_id)[0]
    decide(http, vendor["id"], verdict="correct", value="Ash Ltd")
    answer = http.get(f"/v1/extractions/{extraction_id}/gold")
    (line,) = map(json.loads, answer.text.splitlines())
    assert (line["document"], line["fields"]["vendor"], line["known"]) == ("1.txt", "Ash Ltd", ["vendor"])
    assert answer.headers["x-has-more"] == "false"


def test_the_sample_tells_how_much_is_wrong_of_what_nobody_need_look_at(
    http: httpx.Client, extract: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviews, "SAMPLED", 1.0)
    extraction_id = extract(SURE, DOUBTFUL)
    drawn = listed(http, extraction_id, reason="sample")
    assert len(drawn) == 2
    url = f"/v1/extractions/{extraction_id}/reviews"
    assert http.get(url).json()["unmarked_error_rate"] is None
    decide(http, drawn[0]["id"], verdict="reject")
    assert http.get(url).json() == {
        "object": "extraction.reviews",
        "doubt": {"open": 2, "decided": 0, "wrong": 0},
        "sample": {"open": 1, "decided": 1, "wrong": 1},
        "items": {"added": 0, "dropped": 0},
        "unmarked_error_rate": 1.0,
    }


def test_a_calibration_is_learned_of_decisions_and_taken_by_the_next_extraction(
    http: httpx.Client, extract: Any
) -> None:
    extraction_id = extract(*[f"vendor: Firm {FLAKY} {number}\ntotal: {number}".encode() for number in range(40)])
    url = f"/v1/extractions/{extraction_id}/calibration"
    unreachable = http.post(url, json={"target": 1.0}).json()["error"]
    assert (unreachable["param"], "less than 1" in unreachable["message"]) == ("target", True), unreachable
    few = http.post(url, json={})
    assert (few.status_code, few.json()["error"]["code"]) == (409, "too_few_reviews")
    for number, review in enumerate(listed(http, extraction_id)):
        said = {"verdict": "accept"} if number % 4 else {"verdict": "correct", "value": f"Firm {number}"}
        assert decide(http, review["id"], **said).status_code == 200
    learned = http.post(url, json={"target": 0.9}).json()
    assert (learned["nulls"]["num_gold"], learned["nulls"]["is_learned"]) == (40, True)
    assert learned["values"]["is_learned"] is False
    collection_id = http.get(f"/v1/extractions/{extraction_id}").json()["collection_id"]
    asked = {"collection_id": collection_id, "schema": SCHEMA, "model": MODEL}
    assert http.post("/v1/extractions", json=asked | {"calibration": learned["calibration"]}).status_code == 200


def test_there_are_no_reviews_before_the_end_and_none_after_the_deletion(
    http: httpx.Client, extract: Any, deployment: Any
) -> None:
    extraction_id = extract(DOUBTFUL)
    review = listed(http, extraction_id)[0]
    collection_id = http.get(f"/v1/extractions/{extraction_id}").json()["collection_id"]
    asked = {"collection_id": collection_id, "schema": SCHEMA, "model": MODEL}
    under_way = http.post("/v1/extractions", json=asked).json()["id"]
    early = http.get("/v1/reviews", params={"extraction_id": under_way})
    assert (early.status_code, early.json()["error"]["code"]) == (409, "no_results")
    assert http.delete(f"/v1/extractions/{extraction_id}").status_code == 200
    assert decide(http, review["id"], verdict="accept").status_code == 404
    with deployment.engine.begin() as connection:
        left = text("SELECT count(*) FROM review WHERE extraction_id = :id")
        assert connection.scalar(left, {"id": extraction_id}) == 0


def test_no_tenant_sees_or_decides_anothers_reviews(http: httpx.Client, other: httpx.Client, extract: Any) -> None:
    extraction_id = extract(DOUBTFUL)
    review = listed(http, extraction_id)[0]
    url = f"/v1/extractions/{extraction_id}"
    for answer in (
        other.get("/v1/reviews", params={"extraction_id": extraction_id}),
        other.post("/v1/reviews/claim", json={"extraction_id": extraction_id}),
        decide(other, review["id"], verdict="accept"),
        other.get(f"{url}/reviews"),
        other.get(f"{url}/gold"),
        other.post(f"{url}/calibration", json={}),
    ):
        assert answer.status_code == 404
    assert listed(http, extraction_id)[0] == review
