"""Tests of vectors and scores of a server, as lines of a batch."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jobs import served_models
from jobs.lines.embedding_bodies import EMBEDDING_ENDPOINT
from jobs.lines.endpoints import LineKind
from jobs.lines.rerank_bodies import RERANK_ENDPOINT
from tests.workers.remote.builders import Post
from tests.workers.remote.fake_server import FakeServer, Request, good_answer
from workers.remote.checks import first_check, kind_of
from workers.remote.dialects import OTHER, VLLM
from workers.remote.exchange import Address
from workers.remote.identity import identify
from workers.remote.sizes import TokenSizes

Run = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def run(post: Post, submit_valid: Callable[..., str], tenant: Any) -> Run:
    """Run bodies of one endpoint by a worker with these options; return the results' bodies by custom_id."""

    def run(endpoint: str, *bodies: dict[str, Any], **options: Any) -> dict[str, dict[str, Any]]:
        kind = LineKind.RERANK if endpoint == RERANK_ENDPOINT else LineKind.POOL
        with post.maker.begin() as session:
            served_models.note_kind(session, "demo", kind)
        lines = [
            {"custom_id": f"c{number}", "method": "POST", "url": endpoint, "body": {"model": "demo"} | body}
            for number, body in enumerate(bodies)
        ]
        submit_valid(lines, endpoint=endpoint)
        post.open(**options)
        assert post.run_next()
        return post.bodies()

    return run


def test_vectors_come_in_order_whole_shortened_and_as_base64(run: Run, post: Post, server: FakeServer) -> None:
    bodies = run(
        EMBEDDING_ENDPOINT,
        {"input": ["a", "b"]},
        {"input": ["a", "b"], "dimensions": 2},
        {"input": "a", "encoding_format": "base64"},
        {"input": "a", "dimensions": 9},
    )
    assert [one["embedding"] for one in bodies["c0"]["data"]] == [[1, 0, 0, 0], [1, 1, 0, 0]]
    assert bodies["c0"]["engine"] == {"name": "vllm", "version": "9.9"}
    assert [one["embedding"] for one in bodies["c1"]["data"]] == [[1, 0], [1, 1]], "not of length 1, so not made so"
    packed = base64.b64decode(bodies["c2"]["data"][0]["embedding"])
    assert np.frombuffer(packed, "<f4").tolist() == [1, 0, 0, 0]
    assert bodies["c3"]["error"]["param"] == "dimensions"
    assert post.billed() == (15, 0)
    assert server.bodies["['a', 'b']"] == {"model": "served", "input": ["a", "b"], "encoding_format": "float"}


def test_a_shortened_vector_of_length_1_has_that_length_again(run: Run, server: FakeServer) -> None:
    async def unit(request: Request) -> None:
        data = [{"index": 0, "embedding": [0.6, 0.0, 0.8]}]
        await request.answer(json.dumps(good_answer(request.body, data=data)).encode())

    server.behaviours["unit"] = unit
    server.default = "unit"
    (shortened,) = run(EMBEDDING_ENDPOINT, {"input": "a", "dimensions": 2})["c0"]["data"]
    assert shortened["embedding"] == pytest.approx([1.0, 0.0])


def test_scores_are_ordered_and_cut_and_billed_by_the_total_alone(run: Run, post: Post) -> None:
    body = run(RERANK_ENDPOINT, {"query": "q", "documents": ["a", "b", "c"], "top_n": 2})["c0"]
    assert [(one["index"], one["document"]["text"]) for one in body["results"]] == [(2, "c"), (1, "b")]
    assert [one["relevance_score"] for one in body["results"]] == [0.5, 0.25]
    assert post.billed() == (9, 0)


@pytest.mark.parametrize(
    "data",
    [
        [],
        [{"index": 1, "embedding": [1.0]}],
        [{"index": 0, "embedding": []}],
        [{"index": 0, "embedding": [None]}],
        [{"index": 0, "embedding": "AACAPw=="}],
        5,
    ],
)
def test_what_are_no_vectors_of_the_line_s_texts_is_no_answer(
    data: Any, post: Post, run: Run, server: FakeServer
) -> None:
    async def wrong(request: Request) -> None:
        await request.answer(json.dumps(good_answer(request.body, data=data)).encode())

    server.behaviours["wrong"] = wrong
    run(EMBEDDING_ENDPOINT, {"input": "misbehave wrong 1"}, {"input": "a"})
    assert server.num_asked["['misbehave wrong 1']"] == 2
    assert post.rows("SELECT sum(wasted_input_tokens)::int FROM ledger") == [(5,)]


def test_texts_go_as_tokens_and_are_counted_where_the_tokenizer_is_known(
    run: Run, server: FakeServer, tokenizer: Any, post: Post
) -> None:
    bodies = run(
        EMBEDDING_ENDPOINT,
        {"input": ["Hello there"]},
        {"input": "word " * 300},
        sizes=TokenSizes(tokenizer, max_model_len=128),
    )
    assert next(iter(server.bodies.values()))["input"] == [tokenizer.encode("Hello there")]
    assert bodies["c1"]["error"]["code"] == "context_length_exceeded"


def test_texts_are_cut_only_by_servers_that_can(run: Run, server: FakeServer) -> None:
    bodies = run(EMBEDDING_ENDPOINT, {"input": ["a"], "truncate": True}, dialect=OTHER)
    assert bodies["c0"]["error"]["param"] == "truncate"
    assert not server.num_asked


def test_vllm_is_asked_to_cut_texts(run: Run, server: FakeServer) -> None:
    run(EMBEDDING_ENDPOINT, {"input": ["a"], "truncate": True}, dialect=VLLM)
    assert server.bodies["['a']"]["truncate_prompt_tokens"] == -1


@pytest.mark.parametrize(("field", "kind"), [("input", LineKind.POOL), ("documents", LineKind.RERANK)])
def test_a_model_s_kind_is_what_its_server_answers(field: str, kind: LineKind, server: FakeServer) -> None:
    async def only(request: Request) -> None:
        await server.behaviours["404" if field not in request.body else "well-soon"](request)

    server.behaviours["only"] = only
    server.default = "only"
    address = Address(url=server.url)
    check, name = first_check(address, identify(address, named=None, served=None), has_tokenizer=False)
    assert (kind_of(check), name) == (kind, "served")


def test_a_length_of_zero_stays_zero(run: Run, server: FakeServer) -> None:
    async def zero(request: Request) -> None:
        data = [{"index": 0, "embedding": [0.0, 1.0]}]
        await request.answer(json.dumps(good_answer(request.body, data=data)).encode())

    server.behaviours["zero"] = zero
    server.default = "zero"
    (shortened,) = run(EMBEDDING_ENDPOINT, {"input": "a", "dimensions": 1})["c0"]["data"]
    assert not math.isnan(shortened["embedding"][0])
