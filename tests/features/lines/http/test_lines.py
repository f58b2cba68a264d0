"""Tests of the endpoints of lines, and of every answer that they refuse with."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI
from openai.types import Batch
from sqlalchemy.orm import Session

from features.lines.content import Shown, shown
from features.lines.reader import FoundLine
from features.lines.searching import Hits
from jobs.errors import GoneError, ServiceError
from jobs.files import line_index_key
from jobs.tables import File
from tests.api.worker import run, validate

Submit = Callable[..., Batch]


@pytest.fixture
def batch(client: OpenAI, deployment: Any, input_lines: Callable[..., bytes]) -> Batch:
    """A batch of six lines that has ended; 2 and 5 (0-based) have failed."""
    file = client.files.create(file=("in.jsonl", input_lines(6)), purpose="batch")
    made = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    run(deployment, made.id, failed=(2, 5))
    return client.batches.retrieve(made.id)


@pytest.fixture
def api(client: OpenAI, deployment: Any) -> Iterator[httpx.Client]:
    """A plain client with the key of `client`."""
    headers = {"Authorization": f"Bearer {client.api_key}"}
    with httpx.Client(base_url=f"{deployment.url}/v1", headers=headers, timeout=60) as plain:
        yield plain


def numbers(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    return [line["number"] for line in answer.json()["data"]]


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def rows(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def test_pages_have_the_lines_in_their_order(api: httpx.Client, batch: Batch) -> None:
    first = api.get(f"/batches/{batch.id}/lines", params={"limit": 4})
    assert numbers(first) == [1, 2, 3, 4]
    body = first.json()
    assert (body["next_after"], body["has_more"], body["batch_status"]) == (4, True, "completed")
    assert body["data"][2] == {
        "object": "batch.line",
        "number": 3,
        "custom_id": "line-2",
        "failed": True,
        "status_code": None,
        "code": "engine_failure",
        "size_bytes": body["data"][2]["size_bytes"],
        "excerpt": "no",
    }
    last = api.get(f"/batches/{batch.id}/lines", params={"limit": 4, "after": 4})
    assert (numbers(last), last.json()["has_more"]) == ([5, 6], False)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"failed": "true"}, [3, 6]),
        ({"failed": "false"}, [1, 2, 4, 5]),
        ({"code": "engine_failure"}, [3, 6]),
        ({"code": "unknown"}, []),
        ({"status": "200"}, [1, 2, 4, 5]),
        ({"status": "404"}, []),
        ({"after": "2000000"}, []),
    ],
)
def test_a_filter_selects_lines(api: httpx.Client, batch: Batch, query: dict[str, str], found: list[int]) -> None:
    assert numbers(api.get(f"/batches/{batch.id}/lines", params=query)) == found


def test_one_line_is_beside_its_request(api: httpx.Client, batch: Batch) -> None:
    whole = api.get(f"/batches/{batch.id}/lines/3").json()
    assert (whole["number"], whole["code"], whole["no_request"]) == (3, "engine_failure", None)
    assert whole["result"]["error"] == {"code": "engine_failure", "message": "no"}
    assert whole["request"]["custom_id"] == "line-2"


def test_a_line_is_shown_after_its_input_was_deleted(api: httpx.Client, client: OpenAI, batch: Batch) -> None:
    client.files.delete(batch.input_file_id)
    whole = api.get(f"/batches/{batch.id}/lines/1").json()
    assert (whole["request"], whole["no_request"]) == (None, "deleted")
    assert whole["result"]["custom_id"] == "line-0"


@pytest.mark.parametrize(("levels", "kind"), [(200, dict), (900, str)])
def test_a_request_of_any_depth_is_shown(
    api: httpx.Client, client: OpenAI, deployment: Any, input_lines: Callable[..., bytes], *, levels: int, kind: type
) -> None:
    nested = b"[" * levels + b"]" * levels
    content = input_lines(1).replace(b'{"custom_id"', b'{"mine": ' + nested + b', "custom_id"')
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    made = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    run(deployment, made.id)
    whole = api.get(f"/batches/{made.id}/lines/1").json()
    assert type(whole["request"]) is kind
    assert whole["result"]["custom_id"] == "line-0"


@pytest.mark.parametrize("path", ["/lines", "/lines/3"])
def test_lines_are_parsed_beside_the_event_loop(
    api: httpx.Client, batch: Batch, monkeypatch: pytest.MonkeyPatch, *, path: str
) -> None:
    loops: list[object] = []

    def recorded(line: FoundLine) -> Shown:
        loops.append(asyncio._get_running_loop())
        return shown(line)

    monkeypatch.setattr("features.lines.schemas.shown", recorded)
    assert api.get(f"/batches/{batch.id}{path}").status_code == 200
    assert set(loops) == {None}


def test_a_search_sends_hits_and_how_it_ended(api: httpx.Client, batch: Batch) -> None:
    *hits, end = rows(api.get(f"/batches/{batch.id}/lines/grep", params={"text": "line-"}))
    assert [row["hit"]["number"] for row in hits] == [1, 2, 3, 4, 5, 6]
    assert (end["progress"]["has_ended"], end["progress"]["has_more"]) == (True, False)
    assert end["progress"]["searched_bytes"] > 0


def test_a_search_continues_where_its_limit_ended_it(api: httpx.Client, batch: Batch) -> None:
    path = f"/batches/{batch.id}/lines/grep"
    query: dict[str, str | int] = {"text": "line-", "failed": "true", "limit": 1}
    hit, end = rows(api.get(path, params=query))
    assert (hit["hit"]["number"], end["progress"]["has_more"]) == (3, True)
    hit, end = rows(api.get(path, params={**query, "after": end["progress"]["next_after"]}))
    assert (hit["hit"]["number"], end["progress"]["has_more"]) == (6, False)


def test_a_search_without_hits_has_only_its_end(api: httpx.Client, batch: Batch) -> None:
    [end] = rows(api.get(f"/batches/{batch.id}/lines/grep", params={"text": "nowhere"}))
    assert end["progress"]["has_ended"]


def test_lines_of_a_running_batch_are_those_with_a_result(
    api: httpx.Client, deployment: Any, client: OpenAI, submit: Submit
) -> None:
    running = submit(client)
    validate(deployment, running.id)
    page = api.get(f"/batches/{running.id}/lines")
    assert (numbers(page), page.json()["batch_status"]) == ([], "in_progress")
    assert refusal(api.get(f"/batches/{running.id}/lines/1")) == (404, "no_result")
    [end] = rows(api.get(f"/batches/{running.id}/lines/grep", params={"text": "line"}))
    assert end["progress"]["has_ended"]


def test_a_lost_index_is_made_by_the_first_request(
    api: httpx.Client, deployment: Any, client: OpenAI, batch: Batch
) -> None:
    with Session(deployment.engine) as session:
        index = deployment.objects / line_index_key(session.get_one(File, batch.output_file_id).object_key)
    index.unlink()
    assert numbers(api.get(f"/batches/{batch.id}/lines", params={"failed": "true"})) == [3, 6]
    assert index.exists()


PATHS = ("/lines", "/lines/1", "/lines/grep?text=x")


@pytest.mark.parametrize("path", PATHS)
def test_an_unknown_batch_and_another_tenants_are_not_found(
    api: httpx.Client, http: httpx.Client, batch: Batch, path: str
) -> None:
    assert refusal(api.get(f"/batches/batch_unknown{path}")) == (404, "not_found")
    assert refusal(http.get(f"/v1/batches/{batch.id}{path}")) == (404, "not_found")


@pytest.mark.parametrize("path", PATHS)
def test_lines_of_a_deleted_output_are_gone(
    api: httpx.Client, client: OpenAI, deployment: Any, batch: Batch, path: str
) -> None:
    client.files.delete(str(batch.output_file_id))
    assert refusal(api.get(f"/batches/{batch.id}{path}")) == (410, "output_file_deleted")


@pytest.mark.parametrize("path", PATHS)
def test_lines_of_a_deleted_batch_are_not_found(api: httpx.Client, client: OpenAI, batch: Batch, path: str) -> None:
    client.delete(f"/batches/{batch.id}", cast_to=dict[str, Any])
    assert refusal(api.get(f"/batches/{batch.id}{path}")) == (404, "not_found")


@pytest.mark.parametrize("path", PATHS)
def test_a_store_that_has_lost_the_results_is_an_error_of_the_service(
    api: httpx.Client, deployment: Any, batch: Batch, path: str
) -> None:
    for name in deployment.object_names():
        (deployment.objects / name).unlink()
    assert refusal(api.get(f"/batches/{batch.id}{path}")) == (503, "service_unavailable")


def test_a_line_that_is_not_there_is_not_found(api: httpx.Client, batch: Batch) -> None:
    assert refusal(api.get(f"/batches/{batch.id}/lines/7")) == (404, "no_result")


@pytest.mark.parametrize(
    "path",
    [
        *("/lines?after=-1", "/lines?limit=0", "/lines?limit=201", "/lines?failed=maybe", "/lines?status=99"),
        *("/lines?code=", "/lines?code=%00", "/lines?other=1", "/lines/0", "/lines/first"),
        *("/lines/grep", "/lines/grep?text=", "/lines/grep?text=x&limit=10001"),
    ],
)
def test_a_bad_value_is_refused(api: httpx.Client, batch: Batch, path: str) -> None:
    assert api.get(f"/batches/{batch.id}{path}").status_code == 400


@pytest.mark.parametrize(
    ("error", "code"),
    [(ServiceError("away"), "service_unavailable"), (GoneError("gone", code="results_deleted"), "results_deleted")],
)
def test_a_search_that_cannot_go_on_says_so_in_its_last_row(
    api: httpx.Client, batch: Batch, monkeypatch: pytest.MonkeyPatch, *, error: Exception, code: str
) -> None:
    def search_once(*_: Any, **__: Any) -> Iterator[Hits]:
        yield Hits(lines=(), next_line=3, num_bytes=5, has_more=False)
        raise error

    monkeypatch.setattr("features.lines.http.lines.search", search_once)
    monkeypatch.setattr("features.lines.http.lines._PROGRESS_SECONDS", -1)
    progress, end = rows(api.get(f"/batches/{batch.id}/lines/grep", params={"text": "x"}))
    assert (progress["progress"]["next_after"], progress["progress"]["has_ended"]) == (3, False)
    assert (end["error"]["code"], end["progress"], end["hit"]) == (code, None, None)


def test_a_search_that_takes_too_long_ends_and_can_be_continued(
    api: httpx.Client, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search_on(*_: Any, **__: Any) -> Iterator[Hits]:
        for number in itertools.count():
            yield Hits(lines=(), next_line=number + 1, num_bytes=number, has_more=False)

    monkeypatch.setattr("features.lines.http.lines.search", search_on)
    monkeypatch.setattr("features.lines.http.lines.MAX_SECONDS", -1)
    end = rows(api.get(f"/batches/{batch.id}/lines/grep", params={"text": "x"}))[-1]["progress"]
    assert (end["has_ended"], end["has_more"], end["next_after"]) == (True, True, 1)


def test_a_tenant_has_one_search_at_a_time(api: httpx.Client, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[tuple[int, str]] = []
    path, query = f"/batches/{batch.id}/lines/grep", {"text": "line-"}

    def search_meanwhile(*_: Any, **__: Any) -> Iterator[Any]:
        if not refused:
            refused.append(refusal(api.get(path, params=query)))
        yield from ()

    monkeypatch.setattr("features.lines.http.lines.search", search_meanwhile)
    assert len(rows(api.get(path, params=query))) == 1
    assert refused == [(429, "searches_exceeded")]
    assert len(rows(api.get(path, params=query))) == 1, "it has ended"
