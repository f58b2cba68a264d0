"""Tests of indexes over HTTP: created, shown, searched by words and by vectors, deleted, and separate by tenant."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from features.documents.http import document_texts
from features.retrieval.parts import IndexParts, parts_of
from features.retrieval.searching import Found, Searcher
from features.retrieval.tables import PassageIndex
from jobs import served_models
from jobs.accounts import keys
from jobs.audit.audit import audit
from jobs.chunks import fleet
from jobs.database import sessions
from jobs.lines.embedding_bodies import EMBEDDING_ENDPOINT
from jobs.lines.endpoints import LineKind
from jobs.states import Scope
from jobs.storage import Storage, tokenizers
from jobs.storage.tokenizers import ModelTokenizer
from jobs.tables import Batch
from tests.features.documents.extraction.passages.builders import byte_tokenizer
from tests.features.retrieval.answering import MADE, UNKNOWN, IndexAnswering
from tests.flows.advancers import indexes_of

PAPERS = {"boats.txt": "The ferry leaves the harbour at nine.", "trees.txt": "Oaks grow slowly."}


@pytest.fixture(scope="module")
def deployment(deploy: Callable[..., Any]) -> Any:
    """An API of this module's own: others would see its model and worker."""
    return deploy()


def collect(http: httpx.Client, contents: dict[str, str]) -> str:
    collection_id = str(http.post("/v1/collections", json={"name": "papers"}).json()["id"])
    ids = []
    for name, content in contents.items():
        answer = http.post("/v1/files", data={"purpose": "user_data"}, files={"file": (name, content.encode())})
        ids.append(answer.json()["id"])
    http.post(f"/v1/collections/{collection_id}/documents", json={"file_ids": ids})
    return collection_id


def create(http: httpx.Client, contents: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    body = {"collection_id": collect(http, contents or PAPERS), **fields}
    answer = http.post("/v1/indexes", json=body)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


def answering(deployment: Any) -> IndexAnswering:
    maker, storage = sessions(deployment.engine), Storage(deployment.settings.storage_url)
    return IndexAnswering(maker, storage, deployment.settings)


def build(deployment: Any, index_id: str) -> None:
    worker = answering(deployment)
    for _ in range(8):
        indexes_of(worker.maker, worker.storage, deployment.settings).advance(index_id)
        with worker.maker() as session:
            query = text("SELECT ended_at IS NOT NULL FROM flow WHERE id = :id")
            if session.scalar(query, {"id": index_id}):
                return
        worker.work_off()
    raise AssertionError("it has not ended")


@contextmanager
def embedding(deployment: Any) -> Iterator[IndexAnswering]:
    """Answer the questions that arrive while the block runs."""
    worker, is_over = answering(deployment), threading.Event()
    mine = (Batch.endpoint == EMBEDDING_ENDPOINT) & (Batch.state == "validating")

    def work() -> None:
        while not is_over.wait(0.02):
            with worker.maker() as session:
                batch_ids = session.scalars(select(Batch.id).where(mine)).all()
            for batch_id in batch_ids:
                worker.run(batch_id)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield worker
    finally:
        is_over.set()
        thread.join()


@pytest.fixture
def other(deployment: Any) -> Iterator[httpx.Client]:
    """A client of another tenant."""
    headers = {"Authorization": f"Bearer {deployment.new_key()}"}
    with httpx.Client(base_url=deployment.url, headers=headers, timeout=120) as client:
        yield client


@pytest.fixture
def model(deployment: Any) -> str:
    """The name of an embedding model without a worker."""
    with sessions(deployment.engine).begin() as session:
        served_models.put_model(session, "minilm", "/models/m", is_checked=True)
        served_models.note_kind(session, "minilm", LineKind.POOL)
        served_models.note_embedding(session, "minilm", MADE)
    return "minilm"


@pytest.fixture
def served(deployment: Any, model: str) -> Iterator[str]:
    """The same, served while the test runs."""
    with sessions(deployment.engine).begin() as session:
        fleet.register(session, worker_id="worker_1", model=model, max_chunks=1, max_model_len=128)
    yield model
    with sessions(deployment.engine).begin() as session:
        fleet.stop(session, "worker_1")
        session.execute(text("DELETE FROM worker WHERE id = 'worker_1'"))


def test_an_index_says_whose_tokens_it_counts(http: httpx.Client, deployment: Any, model: str) -> None:
    assert create(http, embedding_model=model)["tokenizer"] is None
    refused = http.post("/v1/indexes", json={"collection_id": collect(http, PAPERS), "tokenizer": model})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "tokenizer_unknown")
    sha256 = tokenizers.keep(Storage(deployment.settings.storage_url), byte_tokenizer())
    with sessions(deployment.engine).begin() as session:
        kept = ModelTokenizer(sha256=sha256, num_special_tokens=2)
        tokenizers.note_tokenizer(session, model, kept)
    made = create(http, tokenizer=model)
    assert (made["tokenizer"], made["embedding_model"], made["max_tokens"]) == (model, None, 256)
    made = create(http, embedding_model=model)
    assert (made["tokenizer"], made["max_tokens"], made["overlap_tokens"]) == (model, 254, 32)
    build(deployment, made["id"])
    shown = http.get(f"/v1/indexes/{made['id']}").json()
    assert (shown["status"], shown["signature"]["tokenizer_sha256"]) == ("completed", sha256)
    with sessions(deployment.engine).begin() as session:
        tokenizers.note_tokenizer(session, model, None)


def test_an_index_is_made_built_shown_searched_and_deleted(http: httpx.Client, deployment: Any) -> None:
    made = create(http, {**PAPERS, "odd.txt": "\x00\x01\x02"}, name="mine", language="english", metadata={"of": "2026"})
    assert (made["status"], made["stages"], made["name"], made["metadata"]) == (
        "in_progress",
        [],
        "mine",
        {"of": "2026"},
    )
    url = f"/v1/indexes/{made['id']}"
    early = http.get(f"{url}/search", params={"query": "ferry"})
    assert (early.status_code, early.json()["error"]["code"]) == (409, "index_not_ready")
    build(deployment, made["id"])
    shown = http.get(url).json()
    assert (shown["status"], shown["num_passages"]) == ("completed", 2)
    assert shown["document_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert [(failure["document"], failure["code"]) for failure in shown["failures"]] == [("odd.txt", "not_text")]
    assert [stage["name"] for stage in shown["stages"]] == ["read", "cut"]
    assert shown["bytes"] > 0
    assert http.get("/v1/indexes", params={"collection_id": made["collection_id"]}).json()["data"] == [shown]

    found = http.get(f"{url}/search", params={"query": "ferries", "top_k": 1}).json()
    assert (found["mode"], found["batch_id"], found["num_tokens"]) == ("bm25", None, found["data"][0]["num_tokens"])
    assert (found["data"][0]["document"], found["data"][0]["text"]) == ("boats.txt", PAPERS["boats.txt"])
    short = http.get(f"{url}/search", params={"query": "ferry", "max_tokens": 3}).json()
    assert (short["data"], [one["reason"] for one in short["dropped"]]) == ([], ["tokens"])

    assert http.delete(url).json() == {"id": made["id"], "object": "index", "deleted": True}
    for call in (http.get(url), http.delete(url), http.get(f"{url}/search", params={"query": "ferry"})):
        assert (call.status_code, call.json()["error"]["code"]) == (404, "not_found")


def test_a_question_is_embedded_by_a_batch_that_is_billed_and_once(
    http: httpx.Client, deployment: Any, served: str
) -> None:
    made = create(http, embedding_model=served)
    build(deployment, made["id"])
    url = f"/v1/indexes/{made['id']}/search"
    with embedding(deployment) as worker:
        found = http.get(url, params={"query": "zzz", "order": "score"}).json()
        again = http.get(url, params={"query": "zzz"}).json()
        assert worker.embedded == ["zzz"]  # once
    assert (found["mode"], len(found["data"])) == ("hybrid", 2)
    assert [passage["rank"] for passage in found["data"]] == [0, 1]
    assert again["batch_id"] is None
    batch = http.get(f"/v1/batches/{found['batch_id']}").json()
    assert (batch["endpoint"], batch["priority"], batch["usage"]["input_tokens"]) == (EMBEDDING_ENDPOINT, "urgent", 7)
    assert batch["metadata"] == {"index_id": made["id"], "purpose": "query"}
    with sessions(deployment.engine)() as session:
        assert audit(session) == []


def test_a_question_that_is_not_embedded_in_time_says_what_else_may_be_done(
    http: httpx.Client, deployment: Any, served: str
) -> None:
    made = create(http, embedding_model=served)
    build(deployment, made["id"])
    url = f"/v1/indexes/{made['id']}/search"
    late = http.get(url, params={"query": "zzz", "timeout_seconds": 0.1})
    assert (late.status_code, late.headers["x-should-retry"]) == (504, "false")
    assert "mode=bm25" in late.json()["error"]["message"]
    (batch,) = [one for one in http.get("/v1/batches").json()["data"] if one["metadata"]["index_id"] == made["id"]][:1]
    assert batch["status"] == "cancelling"
    assert http.get(url, params={"query": "ferry", "mode": "bm25"}).json()["data"]


def test_a_question_that_cannot_be_embedded_is_refused(http: httpx.Client, deployment: Any, served: str) -> None:
    made = create(http, embedding_model=served)
    build(deployment, made["id"])
    with embedding(deployment):
        refused = http.get(f"/v1/indexes/{made['id']}/search", params={"query": UNKNOWN})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "not_embedded")
    assert "context_length_exceeded" in refused.json()["error"]["message"]


def test_without_a_worker_of_its_model_an_index_is_searched_by_words(
    http: httpx.Client, deployment: Any, model: str
) -> None:
    made = create(http, embedding_model=model)
    build(deployment, made["id"])
    url = f"/v1/indexes/{made['id']}/search"
    away = http.get(url, params={"query": "ferry"})
    assert (away.status_code, away.json()["error"]["code"]) == (503, "model_not_served")
    assert http.get(url, params={"query": "ferry", "mode": "bm25"}).json()["data"]


def test_an_index_without_vectors_has_no_hybrid_search(http: httpx.Client, deployment: Any) -> None:
    made = create(http)
    build(deployment, made["id"])
    answer = http.get(f"/v1/indexes/{made['id']}/search", params={"query": "ferry", "mode": "hybrid"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "mode")


def test_nobody_sees_or_probes_the_index_of_another_tenant(
    http: httpx.Client, other: httpx.Client, deployment: Any
) -> None:
    made = create(http)
    build(deployment, made["id"])
    for path in ("", "/search?query=ferry"):
        own, none = (other.get(f"/v1/indexes/{name}{path}") for name in (made["id"], "index_none"))
        assert own.status_code == none.status_code == 404
        assert own.text.replace(made["id"], "index_none") == none.text
    assert other.delete(f"/v1/indexes/{made['id']}").status_code == 404
    assert other.get("/v1/indexes").json()["data"] == []
    assert other.post("/v1/indexes", json={"collection_id": made["collection_id"]}).status_code == 404
    assert http.get(f"/v1/indexes/{made['id']}").json()["status"] == "completed"


def test_a_key_that_only_reads_searches_by_words_alone(http: httpx.Client, deployment: Any, served: str) -> None:
    made = create(http, embedding_model=served)
    build(deployment, made["id"])
    with sessions(deployment.engine).begin() as session:
        tenant_id = session.get_one(PassageIndex, made["id"]).tenant_id
        _, reader = keys.create_key(session, tenant_id, scopes=[Scope.READ])
    with httpx.Client(base_url=deployment.url, headers={"Authorization": f"Bearer {reader}"}, timeout=120) as client:
        url = f"/v1/indexes/{made['id']}/search"
        refused = client.get(url, params={"query": "ferry"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_scope")
        assert client.get(url, params={"query": "ferry", "mode": "bm25"}).status_code == 200


def test_searches_and_texts_of_one_tenant_leave_threads_to_others(
    http: httpx.Client, other: httpx.Client, deployment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, theirs = create(http), create(other)["id"]
    mine = made["id"]
    for index_id in (mine, theirs):
        build(deployment, index_id)
    asked, goes_on = threading.Semaphore(0), threading.Event()
    find, find_text = Searcher.search, document_texts._text

    def asked_parts_of(session: Session, index: PassageIndex) -> IndexParts:
        asked.release()
        return parts_of(session, index)

    def search(searcher: Searcher, parts: IndexParts, *given: Any, **options: Any) -> list[Found]:
        assert parts.id == theirs or goes_on.wait(60)
        return find(searcher, parts, *given, **options)

    def read_text(*given: Any) -> str | None:
        asked.release()
        assert goes_on.wait(60)
        return find_text(*given)

    monkeypatch.setattr(document_texts, "_text", read_text)
    monkeypatch.setattr("features.retrieval.http.searches.parts_of", asked_parts_of)
    monkeypatch.setattr(Searcher, "search", search)
    documents = f"/v1/collections/{made['collection_id']}/documents"
    text_url = f"{documents}/{http.get(documents).json()['data'][0]['id']}/text"
    with ThreadPoolExecutor(10) as executor:
        texts = [executor.submit(http.get, text_url) for _ in range(2)]
        assert all(asked.acquire(timeout=60) for _ in texts)
        answers = [executor.submit(http.get, f"/v1/indexes/{mine}/search?query=ferry") for _ in range(8)]
        assert all(asked.acquire(timeout=60) for _ in answers)
        assert other.get(f"/v1/indexes/{theirs}/search?query=ferry", timeout=30).status_code == 200
        goes_on.set()
        assert [answer.result().status_code for answer in answers] == [200] * 8
        assert [answer.result().status_code for answer in texts] == [200] * 2
