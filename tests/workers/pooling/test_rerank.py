"""Tests of lines of `/v1/rerank`: documents ordered by score, billed by tokens; an invalid line fails alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy.orm import Session, sessionmaker

from engine.pooling.reranker import Reranker
from jobs import served_models
from jobs.accounts import tenants
from jobs.lines.endpoints import LineKind
from jobs.lines.rerank_bodies import RERANK_ENDPOINT
from jobs.tables import Tenant
from tests.engine.pooling.builders import make_cross_encoder
from tests.engine.pooling.language_rerankers import make_language_reranker
from tests.workers.pooling.builders import MODEL, Desk
from workers.pooling import scores
from workers.pooling.scores import ScoreModel

QUERY = "is the sea cold"
DOCUMENTS = ["ships sail to no port", "the sea is cold", "", "the cold wide sea today"]


@pytest.fixture(scope="session")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cross_encoder(tmp_path_factory.mktemp("reranker"), "bert").path


@pytest.fixture(scope="session")
def reranker(cross_encoder: Path) -> Reranker:
    return Reranker(cross_encoder)


@pytest.fixture
def tenant(maker: sessionmaker[Session], cross_encoder: Path) -> Tenant:
    with maker.begin() as session:
        served_models.add_model(session, MODEL, str(cross_encoder), serves=LineKind.RERANK, input_price_picos=3)
        return tenants.create_tenant(session, "acme")


def line(number: int, documents: list[Any], **body: Any) -> dict[str, Any]:
    asked = {"model": MODEL, "query": QUERY, "documents": documents} | body
    return {"custom_id": f"c{number}", "method": "POST", "url": RERANK_ENDPOINT, "body": asked}


Answer = Callable[..., dict[str, Any]]


@pytest.fixture
def answered(desk: Desk, submit_valid: Callable[..., str], reranker: Reranker) -> Answer:
    """Return a function that runs lines to their results, by custom_id."""

    def run(*lines: dict[str, Any], by: Reranker = reranker) -> dict[str, Any]:
        batch_id = submit_valid(list(lines), endpoint=RERANK_ENDPOINT)
        assert desk.run(desk.claim(), ScoreModel(by))
        return desk.results(batch_id)

    return run


def test_documents_are_answered_in_the_order_of_their_scores(answered: Answer, reranker: Reranker) -> None:
    body = answered(line(0, [*DOCUMENTS[:3], {"text": DOCUMENTS[3]}]))["c0"]["response"]["body"]
    wanted = reranker.score(QUERY, DOCUMENTS)
    order = [int(index) for index in np.argsort(-wanted.scores)]
    assert [one["index"] for one in body["results"]] == order
    assert [one["document"] for one in body["results"]] == [{"text": DOCUMENTS[index]} for index in order]
    found = [one["relevance_score"] for one in body["results"]]
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-wanted.scores[order].astype(np.float64))), atol=1e-6)
    assert body["id"].startswith("rerank-")
    assert body["model"] == MODEL
    assert body["usage"] == {"prompt_tokens": sum(wanted.num_tokens), "total_tokens": sum(wanted.num_tokens)}


def test_the_best_alone_are_answered_and_all_are_paid(answered: Answer, desk: Desk, reranker: Reranker) -> None:
    body = answered(line(0, DOCUMENTS, top_n=2, return_documents=False), line(1, DOCUMENTS, top_n=9))
    few, all_ = (body[name]["response"]["body"] for name in ("c0", "c1"))
    assert [one["index"] for one in few["results"]] == [one["index"] for one in all_["results"]][:2]
    assert len(all_["results"]) == len(DOCUMENTS)
    assert few["results"][0].keys() == {"index", "relevance_score"}
    tokens = 2 * sum(reranker.score(QUERY, DOCUMENTS).num_tokens)
    assert desk.rows("SELECT input_tokens, output_tokens, cost_picos FROM batch") == [(tokens, 0, 3 * tokens)]


def test_equal_scores_keep_the_order_of_the_documents(answered: Answer) -> None:
    body = answered(line(0, ["the sea"] * 40))["c0"]["response"]["body"]
    assert [one["index"] for one in body["results"]] == list(range(40))


def test_what_is_too_long_is_its_lines_error_and_costs_nothing(answered: Answer, desk: Desk) -> None:
    long = "sea " * 60
    found = answered(line(0, ["the sea"] * 34 + [long]), line(1, ["the sea"], query=long), line(2, ["the sea"]))
    errors = [found[name]["response"]["body"]["error"] for name in ("c0", "c1")]
    assert [(error["code"], error["param"]) for error in errors] == [
        ("context_length_exceeded", "documents"),
        ("context_length_exceeded", "query"),
    ]
    assert errors[0]["message"].startswith("documents[34] and the query have more than 40 tokens together, which is")
    assert errors[1]["message"].startswith("query has 60 tokens; beside a document it may have 36 in this model")
    assert desk.rows("SELECT num_failed, num_completed FROM batch") == [(2, 1)]


def test_a_line_has_no_more_tokens_than_fit_in_memory(answered: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "_MAX_LINE_TOKENS", 25)
    error = answered(line(0, ["the sea"] * 3))["c0"]["response"]["body"]["error"]
    assert error["message"].startswith("documents have more than 25 tokens, each with the query, up to documents[2];")


def test_a_language_model_answers_as_a_cross_encoder_does(answered: Answer, tmp_path: Path) -> None:
    made = make_language_reranker(tmp_path)
    body = answered(line(0, DOCUMENTS), by=Reranker(tmp_path))["c0"]["response"]["body"]
    found = {one["index"]: one["relevance_score"] for one in body["results"]}
    logits = np.array([made.by_transformers(QUERY, document) for document in DOCUMENTS])
    np.testing.assert_allclose([found[index] for index in range(4)], 1 / (1 + np.exp(-logits)), atol=1e-4)
    assert body["usage"]["prompt_tokens"] == sum(len(made.token_ids(QUERY, document)) for document in DOCUMENTS)


def test_a_batch_of_embeddings_is_refused_by_a_model_that_reranks(
    submit_valid: Callable[..., str], desk: Desk, tenant: Tenant
) -> None:
    body = {"model": MODEL, "input": "a"}
    asked = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": body}
    submit_valid([asked], endpoint="/v1/embeddings")
    ((errors, state),) = desk.rows("SELECT errors, state FROM batch")
    assert state == "failed"
    assert errors[0]["message"].startswith('the model "tiny" answers /v1/rerank, and this batch is for /v1/embeddings')


@pytest.mark.parametrize("logit", [-800.0, -20.0, 0.0, 20.0, 800.0])
def test_a_score_far_from_0_does_not_overflow(logit: float) -> None:
    assert scores._sigmoid(logit) == pytest.approx(1 / (1 + np.exp(-np.float128(logit))))
