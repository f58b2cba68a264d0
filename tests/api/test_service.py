"""Tests of the service's own state, and of its answers while Postgres is down or a commit fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.orm import Session

from engine.stats import EngineLoad, EngineStats, RequestCounters
from jobs.chunks import fleet
from tests.database_roles import as_superuser_do
from workers.engine_metrics import engine_metrics

UNREACHABLE = "postgresql://nobody@127.0.0.1:1/nothing"


@pytest.fixture(scope="module")
def cut_off(serve: Callable[..., str]) -> str:
    """The URL of a server whose Postgres cannot be reached."""
    return serve(database_url=UNREACHABLE)


def test_a_live_server_is_healthy_and_ready(http: httpx.Client) -> None:
    assert http.get("/healthz").json() == {"status": "ok"}
    assert http.get("/readyz").json() == {"status": "ready", "storage": "ok"}


def test_without_postgres_the_server_is_healthy_but_not_ready(cut_off: str) -> None:
    assert httpx.get(f"{cut_off}/healthz").status_code == 200
    answer = httpx.get(f"{cut_off}/readyz")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "service_unavailable")


@pytest.mark.parametrize("call", ["list", "upload", "create"])
def test_without_postgres_every_call_is_a_503_that_the_client_repeats_later(cut_off: str, call: str) -> None:
    calls: dict[str, Callable[[OpenAI], Any]] = {
        "list": lambda client: client.batches.list(),
        "upload": lambda client: client.files.create(file=("a.jsonl", b"{}"), purpose="batch"),
        "create": lambda client: client.batches.create(
            input_file_id="file_1", endpoint="/v1/completions", completion_window="24h"
        ),
    }
    with (
        OpenAI(base_url=f"{cut_off}/v1", api_key="tm-any", max_retries=0) as client,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        calls[call](client)
    assert (caught.value.status_code, caught.value.code) == (503, "service_unavailable")
    assert caught.value.response.headers["retry-after"] == "2"
    assert "127.0.0.1" not in caught.value.message


def test_nothing_is_answered_as_done_before_it_is_committed(deploy: Callable[..., Any]) -> None:
    """A trigger breaks the transaction at its COMMIT, as a server that crashes there would."""
    deployment = deploy()
    with OpenAI(base_url=f"{deployment.url}/v1", api_key=deployment.new_key(), max_retries=0) as client:
        file = client.files.create(file=("a.jsonl", b"{}\n"), purpose="batch")
        with commits_break(deployment, "batch"), pytest.raises(openai.InternalServerError) as caught:
            client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        assert caught.value.status_code == 503
        with commits_break(deployment, "file"), pytest.raises(openai.InternalServerError):
            client.files.create(file=("b.jsonl", b"{}\n"), purpose="batch")
        assert client.batches.list().data == []
        assert [found.id for found in client.files.list()] == [file.id]


@contextmanager
def commits_break(deployment: Any, table: str) -> Iterator[None]:
    create = [
        "CREATE FUNCTION break_commit() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'terminating' USING ERRCODE = '57P01'; END $$",
        f"CREATE CONSTRAINT TRIGGER break_commit AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION break_commit()",
    ]
    with Session(deployment.engine) as session:
        as_superuser_do(session, *create)
        try:
            yield
        finally:
            as_superuser_do(session, "DROP FUNCTION break_commit CASCADE")


@pytest.mark.parametrize(
    "path", ["/healthz", "/readyz", "/metrics", "/openapi.json", "/v1/models", "/v1/files", "/v1/x"]
)
def test_head_is_answered_as_get_is_without_content(http: httpx.Client, path: str) -> None:
    got, asked = http.get(path), http.head(path)
    assert (asked.status_code, asked.content) == (got.status_code, b"")
    varying = {"date", "x-request-id", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"}
    varying |= {"content-length"} if path == "/metrics" else set()
    told, again = ({k: v for k, v in answer.headers.items() if k not in varying} for answer in (got, asked))
    assert again == told
    assert http.get("/healthz").status_code == 200, "the connection goes on"


def test_head_of_a_file_tells_its_size_and_reads_no_more_than_it_must(client: OpenAI, http: httpx.Client) -> None:
    size = 5 * 1024 * 1024
    file = client.files.create(file=("a.bin", bytes(size)), purpose="user_data")
    url, headers = f"/v1/files/{file.id}/content", {"Authorization": f"Bearer {client.api_key}"}
    whole, part = http.head(url, headers=headers), http.head(url, headers={**headers, "range": "bytes=1-4"})
    assert (whole.status_code, whole.headers["content-length"], whole.headers["accept-ranges"]) == (
        200,
        f"{size}",
        "bytes",
    )
    assert (part.status_code, part.headers["content-range"]) == (206, f"bytes 1-4/{size}")
    assert http.head(url).status_code == 404, "another tenant's"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", "/v1/files", "GET, HEAD, POST"),
        ("OPTIONS", "/v1/files/file_1", "DELETE, GET, HEAD"),
        ("HEAD", "/v1/batches/batch_1/cancel", "POST"),
        ("DELETE", "/v1/models/org/name", "GET, HEAD"),
        ("POST", "/metrics", "GET, HEAD"),
    ],
)
def test_allow_names_every_method_of_the_path(http: httpx.Client, method: str, path: str, allowed: str) -> None:
    answer = http.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_the_schema_describes_the_upload_form(http: httpx.Client) -> None:
    schema = http.get("/openapi.json").json()
    form = schema["paths"]["/v1/files"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["required"] == ["purpose", "file"]
    assert set(form["properties"]) == {"purpose", "file", "expires_after[anchor]", "expires_after[seconds]"}


def scrape(url: httpx.URL | str) -> dict[str, dict[tuple[str, ...], float]]:
    """Return name → label values → value as read by Prometheus."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(httpx.get(url).text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_metrics_count_requests_by_route_and_need_no_key(http: httpx.Client) -> None:
    http.get("/v1/files/file_none")
    found = scrape(http.base_url.join("/metrics"))
    assert found["tokenmill_http_requests_total"]["GET", "/v1/files/{file_id}", "404"] >= 1
    assert found["tokenmill_http_request_seconds_count"]["GET", "/v1/files/{file_id}"] >= 1


def test_metrics_show_what_the_workers_tell(deploy: Callable[..., Any]) -> None:
    deployment = deploy()
    stats = EngineStats(load=EngineLoad(num_running=3, max_num_seqs=4), requests=RequestCounters(num_output_tokens=7))
    stats.timings.time_to_first_token.add(0.15)
    stats.timings.time_to_first_token.add(9999.0)
    with Session(deployment.engine) as session, session.begin():
        fleet.register(session, worker_id="w", model="demo", max_chunks=2, max_model_len=64)
        fleet.heartbeat(session, "w", engine_stats=engine_metrics(stats))
    found = scrape(f"{deployment.url}/metrics")
    assert found["tokenmill_engine_generation_tokens_total"] == {("demo", "w"): 7}
    assert found["tokenmill_engine_slot_occupancy"] == {("demo", "w"): 0.75}
    buckets = found["tokenmill_engine_time_to_first_token_seconds_bucket"]
    assert [buckets[bound, "demo", "w"] for bound in ("0.1", "0.2", "5000", "+Inf")] == [0, 1, 1, 2]
    assert found["tokenmill_engine_time_to_first_token_seconds_sum"] == {("demo", "w"): pytest.approx(9999.15)}


def test_metrics_show_the_queue(deploy: Callable[..., Any]) -> None:
    deployment = deploy()
    with OpenAI(base_url=f"{deployment.url}/v1", api_key=deployment.new_key(), max_retries=0) as client:
        file = client.files.create(file=("a.jsonl", b"{}\n"), purpose="batch")
        client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    found = scrape(f"{deployment.url}/metrics")
    assert found["tokenmill_database_up"] == {(): 1}
    assert found["tokenmill_batches"]["validating",] == 1
    assert sum(found["tokenmill_tokens_reserved"].values()) > 0
    assert found["tokenmill_upload_bytes_total"] == {(): 3}


def test_metrics_come_without_postgres_too(cut_off: str) -> None:
    httpx.get(f"{cut_off}/healthz")
    found = scrape(f"{cut_off}/metrics")
    assert found["tokenmill_database_up"] == {(): 0}
    assert found["tokenmill_http_requests_total"]["GET", "/healthz", "200"] >= 1


def test_a_request_for_an_answer_at_once_is_told_how_to_make_a_batch(client: OpenAI) -> None:
    chat, completions = "/v1/chat/completions", "/v1/completions"
    hello: Any = [{"role": "user", "content": "hello"}]
    calls: list[tuple[str, str, Callable[[], Any]]] = [
        (chat, chat, lambda: client.chat.completions.create(model="m", messages=hello)),
        (completions, completions, lambda: client.completions.create(model="m", prompt="hello")),
        ("/v1/responses", f"{chat} or {completions}", lambda: client.responses.create(model="m", input="hello")),
        ("/v1/embeddings", "/v1/embeddings", lambda: client.embeddings.create(model="m", input="hello")),
    ]
    for path, endpoint, call in calls:
        with pytest.raises(openai.NotFoundError) as caught:
            call()
        assert caught.value.code == "unknown_url"
        assert f"POST {path} is not served: this is a batch service." in caught.value.message
        assert "upload it with POST /v1/files and purpose batch" in caught.value.message
        assert f"POST /v1/batches with endpoint {endpoint}." in caught.value.message
