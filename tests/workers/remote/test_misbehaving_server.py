"""Tests of what becomes of lines in the database while their server misbehaves: one batch for the whole table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jobs.lines.needs import Need
from tests.workers.remote.builders import Post
from tests.workers.remote.fake_server import FakeServer
from workers.remote import exchange as exchanging
from workers.remote.calls import caller as calling
from workers.remote.dialects import VLLM
from workers.remote.sizes import TokenSizes

MakeLine = Callable[..., dict[str, Any]]
SubmitLines = Callable[..., str]

ENDS = {
    "html": "engine_failure",
    "cut": "engine_failure",
    "gigabyte": "engine_failure",
    "few-choices": "engine_failure",
    "other-line": "engine_failure",
    "no-end": "engine_failure",
    "500": "engine_failure",
    "400": 400,
    "429-soon 2": 200,
    "half 1": 200,
    "no-usage": 200,
    "huge-usage": 200,
}
"""By what the server did: the code of the line's error, or the status of its response."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "_FIRST_COOL_DOWN_SECONDS", 0.02)
    monkeypatch.setattr(exchanging, "MAX_ANSWER_BYTES", 2**20)


def asking(line: MakeLine, number: int, text: str) -> dict[str, Any]:
    return line(number, messages=[{"role": "user", "content": text}])


def test_every_line_has_its_own_end_and_only_answers_are_billed(
    post: Post, submit_valid: SubmitLines, line: MakeLine, tokenizer: Any
) -> None:
    texts = [f"misbehave {name}" for name in ENDS] + ["Hello", "Hello again"]
    submit_valid([asking(line, number, text) for number, text in enumerate(texts)])
    reads_texts = replace(VLLM, meets=~Need.TOKEN_PROMPTS)  # so that they reach the server as they are
    post.open(sizes=TokenSizes(tokenizer, max_model_len=512), dialect=reads_texts)
    while post.rows("SELECT 1 FROM chunk WHERE state = 'ready'"):
        assert post.run_next()
    results = post.results()
    ends = [_end_of(results[f"c{number}"]) for number in range(len(texts))]
    assert ends == [*ENDS.values(), 200, 200]
    answered = [body["usage"] for body in post.bodies_of(200)]
    assert sum("counted_by" in usage for usage in answered) == 2, "those of no-usage and huge-usage"
    tokens = [(usage["prompt_tokens"], usage["completion_tokens"]) for usage in answered]
    assert post.billed() == tuple(map(sum, zip(*tokens, strict=True)))
    assert all(completion <= 4 for _, completion in tokens), "max_tokens"
    assert post.rows("SELECT DISTINCT losses FROM chunk") == [(0,)]


def _end_of(result: dict[str, Any]) -> Any:
    return result["error"]["code"] if result["error"] else result["response"]["status_code"]


def test_an_answer_that_nobody_has_counted_is_not_given_away(
    post: Post, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([asking(line, 0, "misbehave no-usage"), asking(line, 1, "Hello")])
    assert post.run_next()
    assert [_end_of(result) for result in post.results().values()] == ["engine_failure", 200]
    assert post.billed() == (7, 2)


def test_lines_of_a_server_that_is_away_are_given_back_and_answered_when_it_is_back(
    post: Post, server: FakeServer, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([asking(line, 0, "Hello"), asking(line, 1, "Hello again")])
    server.stop_listening()
    assert not post.run_next()
    assert post.rows("SELECT state, losses FROM chunk") == [("ready", 0)]
    assert post.answerer is not None
    assert post.answerer.stats().away_reason is not None
    server.listen_again()
    for _ in range(400):
        if post.answerer.stats().away_reason is None:
            break
        post.wait_a_moment()
    assert post.run_next()
    assert [_end_of(result) for result in post.results().values()] == [200, 200]
