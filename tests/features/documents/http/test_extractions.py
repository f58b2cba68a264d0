"""Tests of extractions over HTTP: created, shown, read, refused with the place, and separate by tenant."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from features.documents import stages
from features.documents.extraction.scoring.vector import NAMES
from jobs.chunks import fleet
from jobs.database import sessions
from jobs.storage import Storage
from tests.features.documents.answering import Answering
from tests.flows.advancers import extractions_of

MODEL = "org/tiny"
SCHEMA = {"type": "object", "properties": {"vendor": {"type": "string"}, "total": {"type": "string"}}}
UNFIT = {"num_gold": 0, "logistic": None, "isotonic": None, "threshold": 0.9}
"""The contents of a calibration without gold."""
GOOD = b"vendor: Ash Ltd\ntotal: 12.50"


@pytest.fixture(scope="module")
def deployment(deploy: Callable[..., Any]) -> Any:
    """An API of this module's own: workers of others would have too short a context."""
    return deploy()


def collect(http: httpx.Client, *contents: bytes) -> str:
    collection_id = str(http.post("/v1/collections", json={"name": "papers"}).json()["id"])
    ids = []
    for number, content in enumerate(contents):
        answer = http.post(
            "/v1/files", data={"purpose": "user_data"}, files={"file": (f"{number}.txt", content or b"-")}
        )
        ids.append(answer.json()["id"])
    if ids:
        http.post(f"/v1/collections/{collection_id}/documents", json={"file_ids": ids})
    return collection_id


def ask(http: httpx.Client, *contents: bytes, **fields: Any) -> dict[str, Any]:
    body = {"collection_id": collect(http, *contents), "schema": SCHEMA, "model": MODEL} | fields
    answer = http.post("/v1/extractions", json=body)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


def work_off(deployment: Any, extraction_id: str, *, until: str | None = None) -> Answering:
    """Process everything until it has ended, or a stage has begun; return what processed it."""
    maker, storage = sessions(deployment.engine), Storage(deployment.settings.storage_url)
    answering = Answering(maker, storage, deployment.settings)
    for _ in range(8):
        extractions_of(maker, storage, deployment.settings).advance(extraction_id)
        with maker() as session:
            query = text("SELECT ended_at IS NOT NULL FROM flow WHERE id = :id")
            if session.scalar(query, {"id": extraction_id}):
                return answering
            if until is not None and len(stages.stages_of(session, extraction_id)) > stages.STAGES.index(until):
                return answering
        answering.work_off()
    raise AssertionError("it has not ended")


@pytest.fixture
def other(deployment: Any) -> Iterator[httpx.Client]:
    """A client of another tenant."""
    headers = {"Authorization": f"Bearer {deployment.new_key()}"}
    with httpx.Client(base_url=deployment.url, headers=headers, timeout=120) as client:
        yield client


def test_an_extraction_is_made_worked_off_shown_and_read(http: httpx.Client, deployment: Any) -> None:
    made = ask(http, GOOD, b"vendor: Birch Ltd\ntotal: 3", metadata={"of": "2026"}, priority="bulk")
    assert (made["status"], made["schema"], made["stages"]) == ("in_progress", SCHEMA, [])
    assert (made["metadata"], made["priority"], made["document_counts"]["total"]) == ({"of": "2026"}, "bulk", 2)
    work_off(deployment, made["id"])
    shown = http.get(f"/v1/extractions/{made['id']}").json()
    assert (shown["status"], shown["document_counts"]) == ("completed", {"total": 2, "completed": 2, "failed": 0})
    assert [stage["name"] for stage in shown["stages"]] == ["read", "ask", "ground", "ask_again", "ground_again"]
    assert shown["stages"][1]["request_counts"]["completed"] == 2
    assert (shown["input_tokens"], shown["output_tokens"]) == (14, 6)
    assert http.get("/v1/extractions").json()["data"] == [shown]
    assert http.get("/v1/extractions", params={"collection_id": "collection_other"}).json()["data"] == []
    lines = http.get(f"/v1/files/{shown['output_file_id']}/content").text.splitlines()
    assert [json.loads(line)["fields"]["vendor"] for line in lines] == ["Ash Ltd", "Birch Ltd"]


def test_further_fields_of_the_requests_are_sent_with_each_question(http: httpx.Client, deployment: Any) -> None:
    made = ask(http, GOOD, params={"seed": 7, "temperature": 0.5})
    answering = work_off(deployment, made["id"])
    assert [(body["seed"], body["temperature"]) for body in answering.asked] == [(7, 0.5)]


def test_each_round_of_asking_again_is_shown_as_stages(http: httpx.Client, deployment: Any) -> None:
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in ("a", "b", "c")}}
    made = ask(http, b"a: 1 ENDLESS\nb: 2 ENDLESS\nc: 3 ENDLESS", schema=schema)
    work_off(deployment, made["id"])
    shown = http.get(f"/v1/extractions/{made['id']}").json()
    counts = [(stage["name"], stage["request_counts"]["total"]) for stage in shown["stages"]]
    assert counts[:3] == [("read", 1), ("ask", 1), ("ground", 1)]
    assert counts[3:] == [("ask_again", 2), ("ground_again", 1), ("ask_again", 2), ("ground_again", 1)]
    assert shown["input_tokens"] == 7 * 5


def test_a_plan_that_another_release_has_kept_is_listed_and_fails_with_that_for_its_reason(
    http: httpx.Client, deployment: Any
) -> None:
    asked = ask(http, b"vendor: Ash Ltd", cover=True)
    with deployment.engine.begin() as connection:
        unknown = text("UPDATE extraction SET plan = jsonb_set(plan, '{version}', '99') WHERE id = :id")
        connection.execute(unknown, {"id": asked["id"]})
    (listed,) = http.get("/v1/extractions").json()["data"]
    assert (listed["id"], listed["again"], listed["cover"]) == (asked["id"], True, True)
    work_off(deployment, asked["id"])
    found = http.get(f"/v1/extractions/{asked['id']}").json()
    assert "stored by another release" in found["reason"]


def test_results_are_read_page_by_page_and_no_cursor_but_a_pages_is_taken(http: httpx.Client, deployment: Any) -> None:
    made = ask(http, GOOD, GOOD, GOOD, again=False)
    url = f"/v1/extractions/{made['id']}/results"
    early = http.get(url)
    assert (early.status_code, early.text) == (200, "")
    assert [early.headers[f"x-{name}"] for name in ("next-after", "has-more", "is-final")] == ["0", "false", "false"]
    work_off(deployment, made["id"])
    first = http.get(url, params={"limit": 2})
    assert (len(first.text.splitlines()), first.headers["x-has-more"]) == (2, "true")
    last = http.get(url, params={"after": first.headers["x-next-after"]})
    assert (len(last.text.splitlines()), last.headers["x-has-more"]) == (1, "false")
    assert last.headers["x-is-final"] == "true"
    end = http.get(url, params={"after": last.headers["x-next-after"]})
    assert (end.text, end.headers["x-has-more"]) == ("", "false")
    for wrong in (3, int(last.headers["x-next-after"]) + 1):
        refused = http.get(url, params={"after": wrong})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "after")


def test_while_documents_are_asked_again_records_are_provisional(http: httpx.Client, deployment: Any) -> None:
    made = ask(http, GOOD, b"vendor: Birch FLAKY Ltd\ntotal: 3", b"")
    url = f"/v1/extractions/{made['id']}/results"
    work_off(deployment, made["id"], until="ask_again")
    first = http.get(url, params={"limit": 1})
    rest = http.get(url, params={"after": first.headers["x-next-after"]})
    records = [json.loads(line) for page in (first, rest) for line in page.text.splitlines()]
    assert [record["status"] for record in records] == ["done", "provisional", "done"]
    assert [page.headers["x-has-more"] for page in (first, rest)] == ["true", "false"]
    assert {page.headers["x-is-final"] for page in (first, rest)} == {"false"}
    assert http.get(f"/v1/extractions/{made['id']}").json()["output_file_id"] is None
    assert http.get(f"/v1/extractions/{made['id']}/gold").status_code == 409
    provisional = {file["id"] for file in http.get("/v1/files").json()["data"] if "provisional" in file["filename"]}
    work_off(deployment, made["id"])
    changed = http.get(url, params={"after": first.headers["x-next-after"]})
    assert (changed.status_code, changed.json()["error"]["code"]) == (409, "results_changed")
    final = http.get(url)
    assert {json.loads(line)["status"] for line in final.text.splitlines()} == {"done"}
    assert final.headers["x-is-final"] == "true"
    assert len(provisional) == 1
    assert http.get(f"/v1/files/{provisional.pop()}").status_code == 404


def test_before_the_end_records_are_provisional_where_values_are_covered(http: httpx.Client, deployment: Any) -> None:
    made = ask(http, GOOD, b"vendor: Birch FLAKY Ltd\ntotal: 3", b"", second_reading=True, cover=True)
    assert (made["again"], made["second_reading"], made["cover"]) == (True, True, True)
    url = f"/v1/extractions/{made['id']}/results"
    afters = ["0"]
    for stage, vendor in (("ask_again", None), (None, "Birch FLAKY Ltd")):
        work_off(deployment, made["id"], until=stage)
        for after in afters[1:]:
            changed = http.get(url, params={"after": after})
            assert (changed.status_code, changed.json()["error"]["code"]) == (409, "results_changed")
        page = http.get(url, params={"limit": 2})
        records = [json.loads(line) for line in page.text.splitlines()]
        assert [record["status"] for record in records] == ["done" if stage is None else "provisional"] * 2
        assert records[1]["fields"]["vendor"] == vendor
        afters.append(page.headers["x-next-after"])
    kept = [file["filename"] for file in http.get("/v1/files").json()["data"]]
    assert not [name for name in kept if made["id"] in name and "provisional" in name]


@pytest.mark.parametrize("given", [{"second_reading": True}, {"cover": True}, {"examples": "extraction_1"}])
def test_passes_of_documents_are_refused_of_an_index(http: httpx.Client, given: dict[str, Any]) -> None:
    body = {"index_id": "index_1", "schema": SCHEMA, "model": MODEL, **given}
    refused = http.post("/v1/extractions", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(given)))
    assert refused.json()["error"]["code"] == "invalid_value"


def test_examples_are_a_gold_file_or_reviews_of_their_tenant_with_the_fields_of_the_schema(
    http: httpx.Client, other: httpx.Client
) -> None:
    gold = {"document": "0.txt", "fields": {"vendor": "Ash Ltd", "total": "12.50"}}
    made = ask(http, GOOD)
    body = {"collection_id": made["collection_id"], "schema": SCHEMA, "model": MODEL}

    def asked(client: httpx.Client, *, fields: dict[str, str]) -> httpx.Response:
        content = json.dumps(gold | {"fields": fields})
        files = {"file": ("gold.jsonl", content)}
        file_id = client.post("/v1/files", data={"purpose": "user_data"}, files=files).json()["id"]
        return http.post("/v1/extractions", json=body | {"examples": file_id}, headers={"Idempotency-Key": file_id})

    good = asked(http, fields={"vendor": "Ash Ltd"})
    assert good.status_code == 200, good.text
    source = good.json()["examples"]
    http.delete(f"/v1/files/{source}")
    repeated = http.post("/v1/extractions", json=body | {"examples": source}, headers={"Idempotency-Key": source})
    assert (repeated.status_code, repeated.json()["id"]) == (200, good.json()["id"])
    wrong = asked(http, fields={"amount": "1"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "examples")
    assert "'amount' is no field of the schema" in wrong.json()["error"]["message"]
    assert asked(other, fields={"vendor": "Ash Ltd"}).status_code == 404
    open_one = http.post("/v1/extractions", json=body | {"examples": made["id"]})
    assert (open_one.status_code, open_one.json()["error"]["code"]) == (409, "no_results")
    assert http.post("/v1/extractions", json=body | {"examples": "extraction_none"}).status_code == 404


def test_what_was_found_before_a_cancel_can_be_read(http: httpx.Client, deployment: Any) -> None:
    made = ask(http, b"vendor: Birch FLAKY Ltd\ntotal: 3")
    work_off(deployment, made["id"], until="ask_again")
    http.post(f"/v1/extractions/{made['id']}/cancel")
    work_off(deployment, made["id"])
    left = http.get(f"/v1/extractions/{made['id']}/results")
    assert (json.loads(left.text)["status"], left.headers["x-is-final"]) == ("provisional", "false")


def test_the_same_key_makes_one_extraction_and_for_another_request_none(http: httpx.Client) -> None:
    body = {"collection_id": collect(http, GOOD), "schema": SCHEMA, "model": MODEL}
    headers = {"Idempotency-Key": "once"}
    first = http.post("/v1/extractions", json=body, headers=headers).json()
    assert http.post("/v1/extractions", json=body, headers=headers).json()["id"] == first["id"]
    other = http.post("/v1/extractions", json={**body, "quotes": False}, headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_reused")


@pytest.mark.parametrize(
    ("fields", "status", "code", "said"),
    [
        ({"schema": {"type": "array"}}, 400, "invalid_schema", "object"),
        ({"schema": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}, "minItems": 1}}}}, 400, "invalid_schema", "minItems"),  # noqa: E501
        ({"model": "none"}, 400, "model_not_found", "org/tiny"),
        ({"completion_window": "1y"}, 400, "invalid_value", "30m"),
        ({"collection_id": "collection_none"}, 404, "not_found", "collection"),
        ({"collection_id": None}, 400, "missing_required_parameter", "index_id"),
        ({"index_id": "index_none"}, 400, "invalid_value", "one of the two"),
        ({"collection_id": None, "index_id": "index_none"}, 404, "not_found", "index"),
        ({"top_k": 3}, 400, "invalid_value", "top_k"),
        ({"cover": "yes"}, 400, "invalid_value", "boolean"),
        ({"calibration": {"of": "nothing"}}, 400, "invalid_request", "calibration"),
        ({"params": {"messages": []}}, 400, "invalid_value", "messages"),
        ({"params": {"max_tokens": 90}}, 400, "invalid_value", "max_tokens"),
        ({"params": {"top_p": 7}}, 400, "invalid_value", "top_p"),
        ({"params": {"nothing": 1}}, 400, "unknown_parameter", "nothing"),
        ({"schemas": {}}, 400, "unknown_parameter", "schemas"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_with_a_reason(
    http: httpx.Client, fields: dict[str, Any], status: int, code: str, said: str
) -> None:
    body = {"collection_id": collect(http, GOOD), "schema": SCHEMA, "model": MODEL} | fields
    answer = http.post("/v1/extractions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code), error
    assert said in error["message"]


@pytest.mark.parametrize(
    ("param", "given", "said"),
    [
        ("schema", '{"type": "object", "properties": {"n": {"type": "integer", "maximum": 1180591620717411303424}}}', "64"),  # noqa: E501
        ("schema", '{"type": "object", "properties": {"n": {"type": "number", "maximum": NaN}}}', "not finite"),
        ("schema", '{"type": "object", "properties": {"n": {"type": "number", "maximum": 1e999}}}', "not finite"),
        ("schema", '{"type": "object", "properties": {"a\\ud800": {"type": "string"}}}', "surrogates"),
        ("schema", '{"$defs": ' + '{"a": ' * 300 + "1" + "}" * 300 + "}", "nested"),
        ("calibration", '{"version": 1180591620717411303424}', "64"),
        ("calibration", json.dumps({"version": 1, "features": NAMES}), "Calibrate again"),
        ("calibration", json.dumps({"version": 1, "features": NAMES, "values": UNFIT, "nulls": UNFIT | {"threshold": "x"}}), "'x'"),  # noqa: E501
        ("calibration", json.dumps({"version": 1, "features": NAMES, "values": UNFIT, "nulls": UNFIT | {"isotonic": {"xs": [1], "ys": []}}}), "ys"),  # noqa: E501
        ("calibration", json.dumps({"version": 1, "features": NAMES, "values": UNFIT, "nulls": UNFIT | {"logistic": {"means": [1], "scales": [1], "weights": [1]}}}), "weight"),  # noqa: E501
    ],
)  # fmt: skip
def test_json_that_cannot_be_kept_is_refused_and_never_changed(
    http: httpx.Client, param: str, given: str, said: str
) -> None:
    body = {"collection_id": collect(http, GOOD), "schema": SCHEMA, "model": MODEL}
    content = json.dumps({name: value for name, value in body.items() if name != param})[:-1]
    answer = http.post(
        "/v1/extractions",
        content=f'{content}, "{param}": {given}}}',
        headers={"Content-Type": "application/json"},
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert said in error["message"]


def test_a_collection_without_documents_is_asked_nothing(http: httpx.Client) -> None:
    answer = http.post("/v1/extractions", json={"collection_id": collect(http), "schema": SCHEMA, "model": MODEL})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "empty_collection")


def test_what_no_batch_could_ask_is_refused_before_anything_is_read(deploy: Callable[..., Any]) -> None:
    small = deploy(max_batch_lines=3)
    with httpx.Client(base_url=small.url, headers={"Authorization": f"Bearer {small.new_key()}"}, timeout=120) as http:
        body = {"collection_id": collect(http, GOOD, GOOD), "schema": SCHEMA, "model": MODEL}
        many = http.post("/v1/extractions", json=body | {"max_fields": 1})
        assert (many.status_code, many.json()["error"]["code"]) == (413, "too_many_lines")
        assert "Ask up to 1 document in one extraction" in many.json()["error"]["message"]
        assert http.post("/v1/extractions", json=body).status_code == 200
        with sessions(small.engine)() as session:
            fleet.register(session, worker_id="worker_1", model=MODEL, max_chunks=1, max_model_len=100)
            session.commit()
        long = http.post("/v1/extractions", json=body | {"max_tokens": 200})
        error = long.json()["error"]
        assert (long.status_code, error["param"]) == (400, "max_tokens")
        assert "100" in error["message"]


def test_a_cancelled_extraction_has_no_results_and_is_cancelled_once(http: httpx.Client, deployment: Any) -> None:
    made = ask(http, GOOD)
    url = f"/v1/extractions/{made['id']}"
    assert http.post(f"{url}/cancel").json()["status"] == "cancelling"
    assert http.delete(url).status_code == 409
    work_off(deployment, made["id"])
    assert http.post(f"{url}/cancel").json()["status"] == "cancelled"
    assert http.get(f"{url}/results").json()["error"]["code"] == "no_results"
    done = ask(http, GOOD)
    work_off(deployment, done["id"])
    refused = http.post(f"/v1/extractions/{done['id']}/cancel")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "extraction_not_cancellable")


def test_a_deleted_extraction_takes_its_files_and_batches_along_and_leaves_the_documents(
    http: httpx.Client, deployment: Any
) -> None:
    made = ask(http, GOOD)
    work_off(deployment, made["id"])
    shown = http.get(f"/v1/extractions/{made['id']}").json()
    assert http.delete(f"/v1/extractions/{made['id']}").json()["deleted"] is True
    assert http.get(f"/v1/extractions/{made['id']}").status_code == 404
    assert http.get(f"/v1/files/{shown['output_file_id']}").status_code == 404
    assert http.get(f"/v1/batches/{shown['stages'][0]['batch_id']}").status_code == 404
    left = http.get("/v1/files").json()["data"]
    assert [file["filename"] for file in left] == ["0.txt"]
    documents = http.get(f"/v1/collections/{made['collection_id']}/documents").json()["data"]
    assert [document["num_characters"] for document in documents] == [len(GOOD)]


def test_results_whose_file_was_deleted_are_gone(http: httpx.Client, deployment: Any) -> None:
    made = ask(http, GOOD)
    work_off(deployment, made["id"])
    file_id = http.get(f"/v1/extractions/{made['id']}").json()["output_file_id"]
    http.delete(f"/v1/files/{file_id}")
    answer = http.get(f"/v1/extractions/{made['id']}/results")
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "results_deleted")


def test_no_tenant_sees_or_changes_anothers_extraction(
    http: httpx.Client, other: httpx.Client, deployment: Any
) -> None:
    made = ask(http, GOOD)
    url = f"/v1/extractions/{made['id']}"
    assert other.get("/v1/extractions").json()["data"] == []
    for call in (other.get(url), other.get(f"{url}/results"), other.post(f"{url}/cancel"), other.delete(url)):
        assert call.status_code == 404
    body = {"collection_id": made["collection_id"], "schema": SCHEMA, "model": MODEL}
    assert other.post("/v1/extractions", json=body).status_code == 404
    assert http.get(url).json()["status"] == "in_progress"


def test_a_collection_in_use_is_not_deleted(http: httpx.Client, deployment: Any) -> None:
    made = ask(http, GOOD)
    url = f"/v1/collections/{made['collection_id']}"
    refused = http.delete(url)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "collection_in_use")
    work_off(deployment, made["id"])
    assert http.delete(url).status_code == 200
    assert http.get(f"/v1/extractions/{made['id']}/results").status_code == 200


def test_limits_of_extractions_and_schemas_are_told(deploy: Callable[..., Any]) -> None:
    small = deploy(tenant_open_extractions=1, max_schema_bytes=200)
    with httpx.Client(base_url=small.url, headers={"Authorization": f"Bearer {small.new_key()}"}, timeout=120) as http:
        ask(http, GOOD)
        body = {"collection_id": collect(http, GOOD), "schema": SCHEMA, "model": MODEL}
        second = http.post("/v1/extractions", json=body)
        assert (second.status_code, second.json()["error"]["code"]) == (429, "too_many_extractions")
        wide = {"type": "object", "properties": {f"field_{number}": {"type": "string"} for number in range(9)}}
        large = http.post("/v1/extractions", json={**body, "schema": wide})
        assert large.status_code == 413
        assert "200 are allowed" in large.json()["error"]["message"]
