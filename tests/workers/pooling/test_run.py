"""Tests of lines of embeddings: vectors in OpenAI's format, billed by tokens; an invalid line fails alone."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from contextlib import nullcontext
from queue import SimpleQueue
from typing import Any, cast

import numpy as np
import pytest
from openai.types import CreateEmbeddingResponse
from sqlalchemy import text

from engine.pooling.embedder import Embedder
from jobs.batches import lifecycle
from jobs.chunks.recording import LineResult
from jobs.lines.reading import InputLine, parse_line
from jobs.states import UncoveredLines
from jobs.tables import Tenant
from tests.engine.pooling.builders import MAX_SEQ_LENGTH
from tests.workers.pooling.builders import Desk, line
from workers.chunks.answerer import Ended
from workers.chunks.ends import STALL_SECONDS
from workers.drain import Drain
from workers.pooling import answerer
from workers.pooling.lines import PoolLine
from workers.pooling.vectors import VectorModel

TEXTS = ["the sea is cold", "ships sail", "to no port today and wide"]


class Broken:
    """An encoder that fails at some texts."""

    def __init__(self, embedder: Embedder, *, at_length: int) -> None:
        self._embedder = embedder
        self._at_length = at_length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._embedder, name)

    def embed_tokens(self, token_ids: list[Any]) -> Any:
        if any(len(own) == self._at_length for own in token_ids):
            raise RuntimeError("no memory")
        return self._embedder.embed_tokens(token_ids)


def test_every_line_is_answered_with_the_vectors_of_its_texts_as_the_official_client_reads_them(
    desk: Desk, embedder: Embedder
) -> None:
    batch_id = desk.submit([line(0, TEXTS[0]), line(1, TEXTS, user="somebody")])
    assert desk.run_next()
    bodies = desk.bodies(batch_id)
    wanted = embedder.embed(TEXTS)
    one, all_ = (CreateEmbeddingResponse.model_validate(bodies[name], strict=True) for name in ("c0", "c1"))
    np.testing.assert_allclose([found.embedding for found in all_.data], wanted.vectors, atol=1e-6)
    np.testing.assert_allclose(one.data[0].embedding, wanted.vectors[0], atol=1e-6)
    assert [found.index for found in all_.data] == [0, 1, 2]
    assert (all_.model, all_.object, all_.data[0].object) == ("tiny", "list", "embedding")
    assert all_.usage.prompt_tokens == all_.usage.total_tokens == sum(wanted.num_tokens)


def test_prompt_tokens_are_billed_and_nothing_else(desk: Desk, embedder: Embedder) -> None:
    batch_id = desk.submit([line(n, TEXTS) for n in range(6)])
    assert desk.run_next()
    assert desk.run_next()
    tokens = 6 * sum(embedder.embed(TEXTS).num_tokens)
    sums = "sum(input_tokens), sum(cached_tokens), sum(output_tokens), sum(cost_picos)"
    assert desk.rows(f"SELECT {sums} FROM ledger") == [(tokens, 0, 0, 3 * tokens)]
    assert desk.rows("SELECT input_tokens, output_tokens, cost_picos, state FROM batch") == [
        (tokens, 0, 3 * tokens, "in_progress")
    ]
    assert desk.rows("SELECT DISTINCT state FROM chunk") == [("done",)]
    assert len(desk.results(batch_id)) == 6


def test_a_vector_comes_as_base64_of_little_endian_floats(desk: Desk, embedder: Embedder) -> None:
    batch_id = desk.submit([line(0, TEXTS[1], encoding_format="base64")])
    assert desk.run_next()
    (found,) = desk.bodies(batch_id)["c0"]["data"]
    vector = np.frombuffer(base64.b64decode(found["embedding"]), "<f4")
    np.testing.assert_allclose(vector, embedder.embed([TEXTS[1]]).vectors[0], atol=1e-6)


def test_a_cut_vector_has_length_1_again(desk: Desk, embedder: Embedder) -> None:
    batch_id = desk.submit([line(0, TEXTS[1], dimensions=5)])
    assert desk.run_next()
    vector = desk.bodies(batch_id)["c0"]["data"][0]["embedding"]
    assert len(vector) == 5
    assert np.linalg.norm(vector) == pytest.approx(1)
    np.testing.assert_allclose(vector, embedder.embed([TEXTS[1]], dimensions=5).vectors[0], atol=1e-6)


def test_token_ids_are_taken_as_they_are(desk: Desk, embedder: Embedder) -> None:
    ids = [found.token_ids.tolist() for found in embedder.tokenize(TEXTS)]
    batch_id = desk.submit([line(0, ids), line(1, ids[0]), line(2, TEXTS)])
    assert desk.run_next()
    bodies = desk.bodies(batch_id)
    vectors = {name: [one["embedding"] for one in body["data"]] for name, body in bodies.items()}
    np.testing.assert_allclose(vectors["c0"], vectors["c2"], atol=1e-6)
    np.testing.assert_allclose(vectors["c1"], vectors["c2"][:1], atol=1e-6)
    assert bodies["c0"]["usage"] == bodies["c2"]["usage"]


def test_what_the_model_does_not_take_is_its_lines_error_and_costs_nothing(desk: Desk, embedder: Embedder) -> None:
    long = " ".join(["sea"] * MAX_SEQ_LENGTH)
    batch_id = desk.submit(
        [
            line(0, [TEXTS[0], long]),
            line(1, TEXTS[0], dimensions=embedder.dimensions + 1),
            line(2, [1] * (MAX_SEQ_LENGTH + 1)),
            line(3, [embedder.vocab_size]),
        ]
    )
    assert desk.run_next()
    errors = [body["error"] for body in desk.bodies(batch_id).values()]
    assert [(error["code"], error["param"], error["message"].split(";")[0]) for error in errors] == [
        ("context_length_exceeded", "input", "input[1] has more than 24 tokens"),
        ("invalid_value", "dimensions", f"dimensions is {embedder.dimensions + 1}"),
        ("context_length_exceeded", "input", "input[0] has 25 tokens"),
        ("invalid_value", "input", f"input[0] has the token id {embedder.vocab_size}"),
    ]
    says_truncate = [error["message"].endswith("or send truncate") for error in errors]
    assert says_truncate == [True, False, False, False], "token ids are never cut"
    assert {each["response"]["status_code"] for each in desk.results(batch_id).values()} == {400}
    assert desk.rows("SELECT num_failed, input_tokens, cost_picos FROM batch") == [(4, 0, 0)]


def test_a_text_that_may_be_cut_is_read_as_far_as_the_model_reads(desk: Desk) -> None:
    long = [" ".join(["sea"] * number) for number in (MAX_SEQ_LENGTH - 2, 3 * MAX_SEQ_LENGTH)]
    batch_id = desk.submit([line(0, long, truncate=True), line(1, [1] * (MAX_SEQ_LENGTH + 1), truncate=True)])
    assert desk.run_next()
    bodies = desk.bodies(batch_id)
    just_fitting, cut = (one["embedding"] for one in bodies["c0"]["data"])
    np.testing.assert_allclose(cut, just_fitting, atol=1e-6)
    assert bodies["c0"]["usage"]["prompt_tokens"] == 2 * MAX_SEQ_LENGTH
    assert bodies["c1"]["error"]["code"] == "context_length_exceeded"


def test_a_text_as_long_as_the_model_reads_is_answered_whole(desk: Desk) -> None:
    batch_id = desk.submit([line(0, " ".join(["sea"] * (MAX_SEQ_LENGTH - 2)))])
    assert desk.run_next()
    assert desk.bodies(batch_id)["c0"]["usage"]["prompt_tokens"] == MAX_SEQ_LENGTH


def test_a_line_that_cannot_be_computed_fails_alone(desk: Desk, embedder: Embedder) -> None:
    batch_id = desk.submit([line(0, "sea"), line(1, "the cold wide sea"), line(2, "port today")])
    assert desk.run_next(embedder=Broken(embedder, at_length=6))
    found = desk.results(batch_id)
    assert [each["error"] and each["error"]["code"] for each in found.values()] == [None, "engine_failure", None]
    assert "RuntimeError" in found["c1"]["error"]["message"]


def test_a_line_that_cannot_be_read_fails_alone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(content: bytes, *, line_no: int, endpoint: str) -> InputLine:
        if line_no == 1:
            raise LookupError("no such table")
        return parse_line(content, line_no=line_no, endpoint=endpoint)

    batch_id = desk.submit([line(0, "sea"), line(1, "the cold wide sea"), line(2, "port today")])
    monkeypatch.setattr(answerer, "parse_line", parse)
    assert desk.run_next()
    found = desk.results(batch_id)
    assert [each["error"] and each["error"]["code"] for each in found.values()] == [None, "engine_failure", None]


def test_a_model_that_is_stuck_has_the_lease_of_its_lines_left_to_end(desk: Desk, embedder: Embedder) -> None:
    class Stuck(Broken):
        began, may_go_on = threading.Event(), threading.Event()

        def embed_tokens(self, token_ids: list[Any]) -> Any:
            self.began.set()
            assert self.may_go_on.wait(20)
            return super().embed_tokens(token_ids)

    now = 0.0
    desk.submit([line(0, "sea")])
    stuck = Stuck(embedder, at_length=0)
    lines, _ = desk.open(desk.claim(), VectorModel(cast(Any, stuck)), monotonic=lambda: now)
    (raw,) = lines.claim.split(lines.claim.read(desk.storage))
    ended: SimpleQueue[Ended[PoolLine]] = SimpleQueue()
    lines.submit([(lines.prepare(raw, is_wanted=lambda: True, room=nullcontext), None)], ended.put)
    assert stuck.began.wait(20)
    assert not lines.is_wedged
    now = STALL_SECONDS + 1
    assert lines.is_wedged
    stuck.may_go_on.set()
    end = ended.get(timeout=20)
    now = 3 * STALL_SECONDS
    assert not lines.is_wedged, "what is computed waits for the chunk, which may wait for room"
    assert isinstance(end.make(), LineResult)


def test_lines_that_have_a_result_are_not_computed_again(desk: Desk, embedder: Embedder) -> None:
    batch_id = desk.submit([line(0, "sea"), line(1, "the cold wide sea")])
    assert desk.run_next()
    before = desk.rows("SELECT line_no, result_no FROM result ORDER BY line_no")
    with desk.sessions.begin() as session:
        session.execute(text("UPDATE chunk SET state = 'ready'"))
    assert desk.run_next(embedder=Broken(embedder, at_length=3))
    assert desk.rows("SELECT line_no, result_no FROM result ORDER BY line_no") == before
    assert len(desk.results(batch_id)) == 2


def test_a_worker_that_stops_gives_its_chunk_back(desk: Desk) -> None:
    desk.submit([line(0, "sea")])
    drain = Drain()
    drain.begin(0)
    assert not desk.run_next(drain=drain)
    assert desk.rows("SELECT state, losses FROM chunk") == [("ready", 0)]
    assert desk.run_next()


def test_a_cancelled_batch_is_not_computed_to_its_end(desk: Desk, tenant: Tenant, embedder: Embedder) -> None:
    class Cancelling(Broken):
        def embed_tokens(self, token_ids: list[Any]) -> Any:
            with desk.sessions.begin() as session:
                lifecycle.cancel_batch(session, tenant.id, batch_id)
            return super().embed_tokens(token_ids)

    settings = desk.settings.model_copy(update={"flush_results": 1, "heartbeat_seconds": 20})  # results first
    few = Desk(**{name: getattr(desk, name) for name in Desk.__slots__} | {"settings": settings})
    batch_id = few.submit([line(0, "sea"), line(1, "the cold wide sea")])
    assert not few.run_next(embedder=Cancelling(embedder, at_length=0))
    assert list(few.results(batch_id)) == ["c0"]
    assert few.rows("SELECT state FROM chunk") == [("withdrawn",)]


@pytest.mark.parametrize("uncovered_lines", UncoveredLines)
def test_a_line_starts_only_where_its_exact_tokens_are_covered(desk: Desk, uncovered_lines: UncoveredLines) -> None:
    """Of three lines of 6 tokens two fit below a limit of 15."""
    with desk.sessions.begin() as session:
        session.execute(text("UPDATE budget SET limit_tokens = 15"))
    lines = [line(n, "the cold wide sea") for n in range(3)]
    batch_id = desk.submit(lines, uncovered_lines=uncovered_lines)
    is_done = desk.run_next()
    assert desk.rows("SELECT spent_tokens <= 15 FROM budget") == [(True,)]
    assert desk.rows("SELECT input_tokens, num_completed FROM batch") == [(12, 2)]
    if uncovered_lines is UncoveredLines.WAIT:
        assert not is_done
        assert desk.rows("SELECT state FROM chunk") == [("waiting",)]
    else:
        assert is_done
        assert desk.results(batch_id)["c2"]["error"]["code"] == "insufficient_quota"


def test_a_batch_of_chats_is_refused_by_a_model_of_embeddings_and_the_other_way_round(
    desk: Desk, submit_valid: Callable[..., str], line_of_chat: dict[str, Any]
) -> None:
    submit_valid([line_of_chat])
    ((errors, state),) = desk.rows("SELECT errors, state FROM batch")
    assert state == "failed"
    assert [(error["code"], error["param"], error["line"]) for error in errors] == [
        ("model_not_supported", "body.model", 1)
    ]
    assert errors[0]["message"] == (
        'the model "tiny" answers /v1/embeddings, and this batch is for /v1/chat/completions; name another model, or '
        "send these lines there"
    )


@pytest.fixture
def line_of_chat() -> dict[str, Any]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    return {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
