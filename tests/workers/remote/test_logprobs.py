"""Tests of log-probabilities in the forms of several servers."""

from __future__ import annotations

from typing import Any

import pytest

from workers.remote.logprobs import logprobs_of

TOP = [{"token": "So", "logprob": -0.5}, {"token": "Oh", "logprob": -1.5}]
OF_CHAT: dict[str, Any] = {
    "content": [
        {"token": "So", "logprob": -0.5, "bytes": [83, 111], "top_logprobs": TOP},
        {"token": " it", "logprob": -2.5, "top_logprobs": TOP},
    ]
}
OF_TEXT: dict[str, Any] = {"tokens": ["So"], "token_logprobs": [-0.5], "top_logprobs": [{}], "text_offset": [0]}


def test_alternatives_are_those_that_were_asked_for() -> None:
    for num in (0, 1, 2):
        read = logprobs_of(OF_CHAT, is_chat=True, num_top=num)
        assert read is not None
        assert [token["top_logprobs"] for token in read["content"]] == [TOP[:num]] * 2
        assert read["content"][0]["bytes"] == [83, 111]


def test_an_answer_to_a_prompt_has_the_form_of_completions() -> None:
    assert logprobs_of(OF_CHAT, is_chat=False, num_top=1) == {
        "tokens": ["So", " it"],
        "token_logprobs": [-0.5, -2.5],
        "top_logprobs": [{"So": -0.5}, {" it": -2.5, "So": -0.5}],
        "text_offset": [0, 2],
    }
    assert logprobs_of(OF_TEXT, is_chat=False, num_top=0) == OF_TEXT
    echoed = OF_TEXT | {"token_logprobs": [None, -0.5]}
    assert logprobs_of(echoed, is_chat=False, num_top=0) == echoed


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"content": None},
        {"content": [{"token": "So"}]},
        {"content": [{"token": "So", "logprob": None}]},
        {"content": [{"logprob": -0.5}]},
        {"token_logprobs": ["-0.5"]},
        {"token_logprobs": [-0.5, None]},
    ],
)
def test_what_lacks_a_number_is_no_answer(value: Any) -> None:
    assert logprobs_of(value, is_chat=False, num_top=1) is None
    assert logprobs_of(value, is_chat=True, num_top=1) is None


def test_a_conversation_needs_the_form_of_conversations() -> None:
    assert logprobs_of(OF_TEXT, is_chat=True, num_top=1) is None
