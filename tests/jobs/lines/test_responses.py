"""Response bodies: the official client's types accept them, field for field."""

from __future__ import annotations

import math
import re

from openai.types import Completion
from openai.types.chat import ChatCompletion

from jobs.lines.responses import (
    MIN_LOGPROB,
    GeneratedChoice,
    TokenLogprob,
    ToolCall,
    Usage,
    chat_completion_body,
    error_body,
    text_completion_body,
)

USAGE = Usage(prompt_tokens=10, completion_tokens=4, cached_tokens=8)
UNLIKELY = TokenLogprob(token="x", logprob=-math.inf, token_bytes=b"x")
TOKENS = [
    TokenLogprob(token="Hé", logprob=-0.5, token_bytes=b"H\xc3\xa9", top=[UNLIKELY]),
    TokenLogprob(token="y", logprob=-1.0, token_bytes=b"y"),
]


def choices(*, with_logprobs: bool) -> list[GeneratedChoice]:
    logprobs = TOKENS if with_logprobs else None
    return [GeneratedChoice(index=index, text="Héy", finish_reason="stop", logprobs=logprobs) for index in range(2)]


def test_a_chat_body_is_what_the_client_reads() -> None:
    body = chat_completion_body("chatcmpl-1", "m", created=5, choices=choices(with_logprobs=True), usage=USAGE)
    read = ChatCompletion.model_validate(body, strict=True)
    assert read.choices[1].message.content == "Héy"
    assert read.usage is not None
    assert (read.usage.total_tokens, read.usage.prompt_tokens_details.cached_tokens) == (14, 8)  # type: ignore[union-attr]
    assert read.choices[0].logprobs is not None
    first = (read.choices[0].logprobs.content or [])[0]
    assert (first.token, first.bytes, first.top_logprobs[0].logprob) == ("Hé", [72, 195, 169], MIN_LOGPROB)


def test_a_completion_body_is_what_the_client_reads() -> None:
    body = text_completion_body("cmpl-1", "m", created=5, choices=choices(with_logprobs=True), usage=USAGE)
    read = Completion.model_validate(body, strict=True)
    logprobs = read.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["Hé", "y"]
    assert logprobs.text_offset == [0, 2]
    assert logprobs.token_logprobs == [-0.5, -1.0]
    assert logprobs.top_logprobs == [{"x": MIN_LOGPROB, "Hé": -0.5}, {"y": -1.0}]


def test_of_alternatives_with_the_same_text_the_likeliest_is_shown() -> None:
    top = [TokenLogprob(token=" a", logprob=logprob, token_bytes=b" a") for logprob in (-0.25, -3.0)]
    token = TokenLogprob(token=" a", logprob=-3.0, token_bytes=b" a", top=top)
    choice = GeneratedChoice(index=0, text=" a", finish_reason="stop", logprobs=[token])
    body = text_completion_body("cmpl-1", "m", created=5, choices=[choice], usage=USAGE)
    assert body["choices"][0]["logprobs"]["top_logprobs"] == [{" a": -0.25}]


def test_without_logprobs_the_field_is_null() -> None:
    chat = chat_completion_body("c", "m", created=5, choices=choices(with_logprobs=False), usage=USAGE)
    completion = text_completion_body("c", "m", created=5, choices=choices(with_logprobs=False), usage=USAGE)
    assert chat["choices"][0]["logprobs"] is None
    assert completion["choices"][0]["logprobs"] is None


def test_an_error_body_has_all_four_keys() -> None:
    assert error_body("no", code="invalid_value", param=None)["error"].keys() == {"message", "type", "param", "code"}


def called(*calls: ToolCall, response_id: str = "chatcmpl-1") -> list[str]:
    """Return the ids of the calls in a response."""
    choice = GeneratedChoice(index=0, text="", finish_reason="stop", tool_calls=calls)
    body = chat_completion_body(response_id, "m", created=5, choices=[choice], usage=USAGE)
    return [call["id"] for call in body["choices"][0]["message"]["tool_calls"]]


def test_calls_have_ids_of_their_place_and_short_ones_where_the_template_wants_them() -> None:
    long, short = (ToolCall(name="f", arguments="{}", has_short_id=is_short) for is_short in (False, True))
    assert all(re.fullmatch(r"call_[0-9a-f]{24}", one) for one in called(long, long))
    assert all(re.fullmatch(r"[A-Za-z0-9]{9}", one) for one in called(short, short))
    assert called(short, short) == called(short, short)
    assert len({*called(short, short), *called(short, short, response_id="chatcmpl-2")}) == 4
