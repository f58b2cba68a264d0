"""Tests of a stack with an encoder: `tokenmill up` serves it as it is, and the official client reads its vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from openai.types import CreateEmbeddingResponse

from engine.pooling.embedder import Embedder
from tests.e2e.builders import Customer, chat, until
from tests.engine.pooling.builders import Folder, make_folder

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ENDPOINT = "/v1/embeddings"
TEXTS = ["the sea is cold", "ships sail to no port"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return make_folder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def stack_model(encoder: Folder) -> tuple[str, ...]:
    return ("--model", str(encoder.path), "--served-name", "tiny")


def line(number: int, **body: Any) -> dict[str, Any]:
    return {"custom_id": f"c{number}", "method": "POST", "url": ENDPOINT, "body": {"model": "tiny", **body}}


def test_a_batch_of_embeddings_is_answered_and_one_of_chats_refused(
    customer: Customer, stack: Any, encoder: Folder
) -> None:
    batch_id = customer.submit([line(0, input=TEXTS), line(1, input="sea " * 100)], endpoint=ENDPOINT)
    refused = customer.submit([chat("hi", model="tiny")])
    batch = customer.wait(batch_id)
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 1, 1)
    wanted = Embedder(encoder.path).embed(TEXTS)
    (answer,) = customer.content(batch.output_file_id)
    found = CreateEmbeddingResponse.model_validate(answer["response"]["body"], strict=True)
    np.testing.assert_allclose([one.embedding for one in found.data], wanted.vectors, atol=1e-6)
    (failure,) = customer.content(batch.error_file_id)
    assert failure["response"]["body"]["error"]["code"] == "context_length_exceeded"
    assert (batch.usage.input_tokens, batch.usage.output_tokens) == (sum(wanted.num_tokens), 0)

    failed = customer.wait(refused)
    assert (failed.status, [error.code for error in failed.errors.data]) == ("failed", ["model_not_supported"])
    (model,) = customer.call("GET", "/models").json()["data"]
    assert model["endpoints"] == [ENDPOINT]
    assert stack.audit().returncode == 0


def test_a_collection_is_indexed_and_found_by_words_and_vectors(customer: Customer, stack: Any) -> None:
    texts = {"sea.txt": b"the sea is cold", "port.txt": b"ships sail to no port"}
    with stack.client() as client:
        ids = [client.files.create(file=(name, text), purpose="user_data").id for name, text in texts.items()]
    collection = customer.call("POST", "/collections", json={"name": "papers"}).json()
    customer.call("POST", f"/collections/{collection['id']}/documents", json={"file_ids": ids})
    wanted = {"collection_id": collection["id"], "embedding_model": "tiny", "max_tokens": 16, "overlap_tokens": 0}
    made = customer.call("POST", "/indexes", json=wanted).json()
    path = f"/indexes/{made['id']}"
    until(lambda: customer.call("GET", path).json()["ended_at"] is not None, stack)
    index = customer.call("GET", path).json()
    assert (index["status"], index["num_passages"], index["num_without_vector"]) == ("completed", 2, 0), index
    asked = {"query": "the sea is cold", "top_k": 1, "timeout_seconds": 30}
    found = customer.call("GET", f"{path}/search", params=asked, timeout=60).json()
    assert (found["mode"], [one["document"] for one in found["data"]]) == ("hybrid", ["sea.txt"])
    assert customer.wait(found["batch_id"]).status == "completed"
    assert customer.call("DELETE", path).json()["deleted"]
    assert stack.audit().returncode == 0
