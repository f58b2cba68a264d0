"""What one line may ask for at most: answers, log-probabilities, ids and strings."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.lines.bodies import COMPLETION_ENDPOINT
from jobs.lines.body_checks import MAX_ANSWERS, MAX_SCORES
from protocol.sampling import MAX_LOGPROBS
from tests.jobs.lines.bodies import chat, complete, refusal


@pytest.mark.parametrize(
    "asked",
    [
        {"top_logprobs": 20, "max_tokens": 65_536},
        {"top_logprobs": 20, "max_completion_tokens": 131_072},
        {"top_logprobs": 5, "n": 8, "max_tokens": 32_768},
    ],
)
def test_a_limit_is_taken_that_leaves_room_for_more_log_probabilities_than_are_shown(asked: dict[str, Any]) -> None:
    limit = asked.get("max_tokens", asked.get("max_completion_tokens"))
    assert chat(logprobs=True, **asked).sampling.max_tokens == limit


def test_each_answer_of_a_line_has_room_for_the_log_probabilities_of_a_token() -> None:
    assert MAX_ANSWERS * (MAX_LOGPROBS + 1) <= MAX_SCORES


@pytest.mark.parametrize(("name", "most"), [("allowed_token_ids", 16_384), ("stop_token_ids", 1024)])
def test_lists_of_token_ids_are_bounded(name: str, most: int) -> None:
    assert getattr(chat(**{name: [5] * most}).sampling, name) == (5,) * most
    asked: dict[str, Any] = {name: [5] * (most + 1)}
    error = refusal(**asked)
    assert (error.param, error.code) == (name, "invalid_value")
    assert error.message == f"{name} holds {most + 1:,} token ids; at most {most:,} are allowed"


@pytest.mark.parametrize("name", ["stop", "bad_words"])
def test_a_string_that_every_token_is_compared_with_is_refused_beyond_256_characters(name: str) -> None:
    assert getattr(chat(**{name: ["a" * 256]}).sampling, name) == ("a" * 256,)
    asked: dict[str, Any] = {name: ["b", "a" * 10_000]}
    error = refusal(**asked)
    assert (error.param, error.code) == (name, "invalid_value")
    assert error.message == f"{name} holds a string of 10,000 characters; at most 256 are allowed in each"


@pytest.mark.parametrize(("num_prompts", "n"), [(2048, 1), (16, 128), (1, 128)])
def test_a_line_may_ask_for_2048_answers(num_prompts: int, n: int) -> None:
    assert len(complete(prompt=["x"] * num_prompts, n=n).prompts) == num_prompts


@pytest.mark.parametrize(("num_prompts", "n"), [(2048, 2), (17, 128)])
def test_a_line_that_asks_for_more_answers_is_no_batch_of_its_own(num_prompts: int, n: int) -> None:
    error = refusal(COMPLETION_ENDPOINT, prompt=["x"] * num_prompts, n=n)
    assert (error.param, error.code) == ("n", "invalid_value")
    said = (
        f"prompt holds {num_prompts:,} prompts and n is {n}: {num_prompts * n:,} answers; 2,048 are allowed in a line"
    )
    assert said in error.message
