"""Tests of uploaded tables: their columns, and their rows through a prompt as the input of a batch."""

from __future__ import annotations

import io
import json
from typing import Any

import httpx
import pytest

from features.pipelines.sources import uploaded_tables

ROWS = b'\xef\xbb\xbftext,lang\n"Good, cheap",en\n"Sehr\nlaut",de\n'


def upload(http: httpx.Client, content: bytes, name: str = "reviews.csv") -> str:
    made = http.post("/v1/files", data={"purpose": "user_data"}, files={"file": (name, content)})
    return str(made.json()["id"])


def test_a_table_says_its_columns_and_first_rows(http: httpx.Client) -> None:
    found = http.get(f"/v1/files/{upload(http, ROWS)}/table").json()
    assert found["columns"] == ["text", "lang"]
    assert found["rows"] == [{"text": "Good, cheap", "lang": "en"}, {"text": "Sehr\nlaut", "lang": "de"}]
    loose = upload(http, b'{"a": 1}\n{"b": null}\n', "rows.jsonl")
    assert http.get(f"/v1/files/{loose}/table").json()["columns"] == ["a", "b"]


def test_rows_become_the_input_of_a_batch(http: httpx.Client) -> None:
    wish = {
        "prompt": "Is this praise? {{ text }}",
        "model": "org/tiny",
        "parameters": {"max_tokens": 4},
        "schema": {"type": "object", "properties": {"praise": {"type": "boolean"}}},
    }
    made = http.post(f"/v1/files/{upload(http, ROWS)}/requests", json=wish).json()
    assert (made["rows"], made["failed"], made["errors"]) == (2, 0, [])
    lines = [json.loads(line) for line in http.get(f"/v1/files/{made['file']['id']}/content").text.splitlines()]
    assert lines == made["lines"]
    assert [line["custom_id"] for line in lines] == ["row-1", "row-2"]
    body = lines[0]["body"]
    assert body["messages"] == [{"role": "user", "content": "Is this praise? Good, cheap"}]
    assert (body["max_tokens"], body["response_format"]["type"]) == (4, "json_schema")
    asked = {"input_file_id": made["file"]["id"], "endpoint": "/v1/chat/completions"}
    estimate = http.post("/v1/estimates", json=asked).json()
    assert (estimate["requests"], estimate["invalid_lines"]) == (2, 0)


def test_rows_that_do_not_fit_are_told_and_left_out(http: httpx.Client) -> None:
    table = upload(http, b'{"n": 2}\n{"n": "x"}\n', "rows.jsonl")
    made = http.post(f"/v1/files/{table}/requests", json={"prompt": "{{ 4 / n }}", "model": "org/tiny"}).json()
    assert (made["rows"], made["failed"], made["errors"][0]["row"]) == (2, 1, 2)
    assert len(made["lines"]) == 1


@pytest.mark.parametrize(
    ("content", "name", "changes", "status", "says"),
    [
        (ROWS, "reviews.csv", {"prompt": "{{ txt }}"}, 400, "Its columns are: text, lang"),
        (ROWS, "reviews.csv", {"prompt": "{{ text"}, 400, "line 1"),
        (ROWS, "reviews.csv", {"parameters": {"messages": []}}, 400, "no 'messages' among them"),
        (ROWS, "reviews.txt", {}, 400, "not a table by its name"),
        (b"text\na\nb,c\n", "reviews.csv", {}, 400, "row 2 (line 3): it has 2 fields and the header 1"),
        (b"text\n", "reviews.csv", {}, 400, "There is no row"),
        (
            b'{"text": 1}',
            "reviews.jsonl",
            {"prompt": "{{ text.a.b }}"},
            400,
            "Its only row does not fit the prompt.",
        ),
    ],
)
def test_what_is_no_table_or_no_prompt_is_told(
    http: httpx.Client, content: bytes, name: str, changes: dict[str, Any], status: int, says: str
) -> None:
    wish = {"prompt": "{{ text }}", "model": "org/tiny"} | changes
    refused = http.post(f"/v1/files/{upload(http, content, name)}/requests", json=wish)
    assert (refused.status_code, says in refused.json()["error"]["message"]) == (status, True), refused.text
    assert len(http.get("/v1/files").json()["data"]) == 1


@pytest.mark.parametrize(
    ("limit", "most"), [("MAX_ROWS", 1), ("MAX_LINES_BYTES", 200), ("MAX_TABLE_BYTES", 10), ("MAX_SECONDS", 0)]
)
def test_what_is_too_large_for_a_call_is_told(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(uploaded_tables, limit, most)
    refused = http.post(f"/v1/files/{upload(http, ROWS)}/requests", json={"prompt": "{{ text }}", "model": "org/tiny"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "table_too_large")
    assert "tokenmill map" in refused.json()["error"]["message"]


def test_prompts_that_take_long_end_the_call(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploaded_tables, "MAX_SECONDS", 0)
    monkeypatch.setattr(uploaded_tables, "_Content", io.BytesIO)  # reading alone takes no time
    table = upload(http, ROWS)
    refused = http.post(f"/v1/files/{table}/requests", json={"prompt": "{{ text }}", "model": "org/tiny"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "table_too_large")
    assert "more than 0 seconds in this call. Use `tokenmill map`" in refused.json()["error"]["message"]
    assert http.get(f"/v1/files/{table}/table").status_code == 200
    assert len(http.get("/v1/files").json()["data"]) == 1


def test_a_table_is_its_tenants(http: httpx.Client, deployment: Any) -> None:
    table = upload(http, ROWS)
    stranger = {"Authorization": f"Bearer {deployment.new_key()}"}
    assert http.get(f"/v1/files/{table}/table", headers=stranger).status_code == 404
    wish = {"prompt": "{{ text }}", "model": "org/tiny"}
    assert http.post(f"/v1/files/{table}/requests", json=wish, headers=stranger).status_code == 404
