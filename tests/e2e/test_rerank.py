"""Tests of a stack with a reranker: `tokenmill up` detects it by its files; `tokenmill models list` shows its kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.pooling.reranker import Reranker
from tests.e2e.builders import Customer
from tests.engine.pooling.language_rerankers import LanguageReranker, make_language_reranker

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ENDPOINT = "/v1/rerank"
QUERY = "is the sea cold?"
DOCUMENTS = ["ships sail to no port", "the sea is cold", "today"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> LanguageReranker:
    return make_language_reranker(tmp_path_factory.mktemp("reranker"))


@pytest.fixture(scope="module")
def stack_model(made: LanguageReranker) -> tuple[str, ...]:
    return ("--model", str(made.path), "--served-name", "tiny")


def line(number: int, documents: list[Any], **body: Any) -> dict[str, Any]:
    asked = {"model": "tiny", "query": QUERY, "documents": documents} | body
    return {"custom_id": f"c{number}", "method": "POST", "url": ENDPOINT, "body": asked}


def test_a_batch_of_queries_is_answered_with_documents_in_order(
    customer: Customer, stack: Any, made: LanguageReranker
) -> None:
    batch_id = customer.submit([line(0, DOCUMENTS), line(1, ["sea " * 300])], endpoint=ENDPOINT)
    refused = customer.submit(
        [{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "tiny", "input": "a"}}],
        endpoint="/v1/embeddings",
    )
    batch = customer.wait(batch_id)
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 1, 1)
    wanted = Reranker(made.path).score(QUERY, DOCUMENTS)
    (answer,) = customer.content(batch.output_file_id)
    results = answer["response"]["body"]["results"]
    order = [int(index) for index in np.argsort(-wanted.scores)]
    assert [(one["index"], one["document"]["text"]) for one in results] == [(n, DOCUMENTS[n]) for n in order]
    np.testing.assert_allclose(
        [one["relevance_score"] for one in results], 1 / (1 + np.exp(-wanted.scores[order])), atol=1e-6
    )
    (failure,) = customer.content(batch.error_file_id)
    assert failure["response"]["body"]["error"]["code"] == "context_length_exceeded"
    assert (batch.usage.input_tokens, batch.usage.output_tokens) == (sum(wanted.num_tokens), 0)

    failed = customer.wait(refused)
    assert (failed.status, [error.code for error in failed.errors.data]) == ("failed", ["model_not_supported"])
    (model,) = customer.call("GET", "/models").json()["data"]
    assert model["endpoints"] == [ENDPOINT]
    assert stack.audit().returncode == 0
