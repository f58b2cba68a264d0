"""Tests of evaluating extractions over HTTP, against the gold of a file or of reviews."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import httpx
import pytest

from features.documents import evaluating
from features.documents.extraction.evaluation.evaluate import evaluate
from features.documents.extraction.evaluation.gold import read_gold_file
from features.documents.extraction.evaluation.metrics import RiskPoint
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.schemas.evaluations import EvaluationObject
from tests.features.documents.answering import FLAKY
from tests.features.documents.http.extracting import completed_extraction

SCHEMA = {"type": "object", "properties": {"vendor": {"type": "string"}, "total": {"type": "string"}}}
DOUBTFUL = f"vendor: Ash {FLAKY} Ltd\ntotal: {FLAKY} 12.50".encode()
SURE = b"vendor: Birch Ltd\ntotal: 3"


@pytest.fixture
def extraction_id(http: httpx.Client, deployment: Any) -> str:
    return completed_extraction(http, deployment, SCHEMA, DOUBTFUL, SURE)


def gold(http: httpx.Client, *lines: dict[str, Any] | str) -> str:
    content = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    file = {"file": ("gold.jsonl", content.encode())}
    return str(http.post("/v1/files", data={"purpose": "user_data"}, files=file).json()["id"])


def measured(http: httpx.Client, extraction_id: str, gold_file_id: str | None = None) -> httpx.Response:
    params = {} if gold_file_id is None else {"gold_file_id": gold_file_id}
    return http.get(f"/v1/extractions/{extraction_id}/evaluation", params=params)


def test_an_extraction_is_measured_against_a_gold_file(http: httpx.Client, extraction_id: str) -> None:
    file = gold(
        http,
        {"document": "1.txt", "fields": {"vendor": "Birch Ltd", "total": "4"}},
        {"document": "absent.txt", "fields": {"vendor": "Elm"}},
    )
    found = measured(http, extraction_id, file).json()
    assert (found["documents"], found["without_gold"], found["without_record"]) == (1, 1, 1)
    vendor, total = found["fields"]["vendor"], found["fields"]["total"]
    assert (vendor["right"], vendor["wrong"], vendor["missed"], vendor["precision"]) == (1, 0, 1, 1.0)
    assert (total["right"], total["wrong"], total["missed"]) == (0, 1, 1)
    assert found["overall"]["recall"] == pytest.approx(1 / 3)
    assert found["risk"][-1]["coverage"] == 1.0
    assert found["risk"][-1]["risk"] == 0.5


def test_without_a_file_decisions_are_gold(http: httpx.Client, extraction_id: str) -> None:
    early = measured(http, extraction_id)
    assert (early.status_code, early.json()["error"]["code"]) == (409, "nothing_decided")
    reviews = http.get("/v1/reviews", params={"extraction_id": extraction_id}).json()["data"]
    for review in [one for one in reviews if (one["path"], one["document"]) == ("vendor", "0.txt")]:
        http.post(f"/v1/reviews/{review['id']}", json={"verdict": "correct", "value": "Ash Ltd"})
    found = measured(http, extraction_id).json()
    overall = found["overall"]
    assert (found["gold_file_id"], found["documents"]) == (None, 1)
    assert (overall["right"], overall["wrong"], overall["missed"]) == (0, 0, 1)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{broken", "gold.jsonl: line 1 is not JSON"),
        ({"document": "1.txt", "fields": {"colour": "red"}}, "colour"),
        ({"document": "other.txt", "fields": {"vendor": "Elm"}}, "'0.txt' there, 'other.txt' here"),
    ],
)
def test_what_is_no_gold_is_told(http: httpx.Client, extraction_id: str, line: Any, says: str) -> None:
    refused = measured(http, extraction_id, gold(http, line))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "gold_file_id")
    assert says in refused.json()["error"]["message"]


def test_what_is_too_large_to_compare_is_told(
    http: httpx.Client, extraction_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = gold(http, {"document": "1.txt", "fields": {"vendor": "Birch Ltd"}})
    monkeypatch.setattr(evaluating, "MAX_GOLD_BYTES", 10)
    assert measured(http, extraction_id, file).status_code == 413
    monkeypatch.setattr(evaluating, "MAX_RECORDS_BYTES", 10)
    assert "tokenmill extract evaluate" in measured(http, extraction_id).json()["error"]["message"]


def test_gold_that_is_much_to_compare_is_told(
    http: httpx.Client, extraction_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = gold(http, *({"document": name, "fields": {}} for name in ("0.txt", "1.txt")))
    monkeypatch.setattr(evaluating, "MAX_COMPARED", 4)
    assert measured(http, extraction_id, file).status_code == 200
    monkeypatch.setattr(evaluating, "MAX_COMPARED", 3)
    refused = [measured(http, extraction_id, file)]
    monkeypatch.setattr(evaluating, "read_gold_file", lambda content, schema, **_: read_gold_file(content, schema))
    refused.append(measured(http, extraction_id, file))
    for answer, says in zip(refused, ("values in gold.jsonl", "comparisons of the records"), strict=True):
        assert (answer.status_code, answer.json()["error"]["param"]) == (413, "gold_file_id")
        assert f"more than 3 {says}" in answer.json()["error"]["message"]
        assert "tokenmill extract evaluate" in answer.json()["error"]["message"]


def test_documents_of_one_name_are_told_apart(http: httpx.Client, deployment: Any) -> None:
    twins = completed_extraction(http, deployment, SCHEMA, DOUBTFUL, DOUBTFUL + b"\n", SURE, name="invoice.txt")
    for review in http.get("/v1/reviews", params={"extraction_id": twins}).json()["data"]:
        http.post(f"/v1/reviews/{review['id']}", json={"verdict": "correct", "value": "Ash Ltd"})
    assert measured(http, twins).json()["documents"] >= 2
    right = {"vendor": "Birch Ltd", "total": "3"}
    refused = measured(http, twins, gold(http, {"document": "invoice.txt", "fields": right}))
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_gold")
    assert "'invoice.txt', the name of two records" in refused.json()["error"]["message"]
    records = map(json.loads, http.get(f"/v1/extractions/{twins}/results").text.splitlines())
    ids = [record["document_id"] for record in records]
    found = measured(http, twins, gold(http, {"document": ids[2], "fields": right})).json()
    assert (found["documents"], found["without_gold"], found["overall"]["right"]) == (1, 2, 2)
    told = http.get(f"/v1/extractions/{twins}/gold").text.splitlines()
    assert [json.loads(line)["document"] for line in told] == ["invoice.txt"] * len(told)
    as_it_was = measured(http, twins).json()
    assert measured(http, twins, gold(http, *told)).json()["overall"] == as_it_was["overall"]


def test_neither_extraction_nor_gold_is_anothers(http: httpx.Client, extraction_id: str, deployment: Any) -> None:
    file = gold(http, {"document": "1.txt", "fields": {"vendor": "Birch Ltd"}})
    headers = {"Authorization": f"Bearer {deployment.new_key()}"}
    with httpx.Client(base_url=deployment.url, headers=headers, timeout=120) as other:
        assert measured(other, extraction_id).status_code == 404
        theirs = completed_extraction(other, deployment, SCHEMA, SURE)
        assert measured(other, theirs, file).status_code == 404


def test_a_curve_of_many_values_keeps_its_shape() -> None:
    risk = [RiskPoint(threshold=1 - n / 399, coverage=(n + 1) / 399, risk=n / 1000) for n in range(399)]
    found = replace(evaluate(FieldSchema.parse(SCHEMA), [], {}), risk=risk)
    shown = [point.coverage for point in EvaluationObject.of("extraction_1", None, found).risk]
    assert len(shown) <= 201
    assert shown[-1] == 1.0
    assert max(after - before for before, after in pairwise(shown)) < 0.01
