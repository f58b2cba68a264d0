"""Response bodies of the line endpoints in the format of OpenAI's API.

Pure: generated text, vectors and counts in, JSON-ready dictionaries out; no SQL, no engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MIN_LOGPROB = -9999.0
"""Shown by the API for a probability of zero: JSON has no minus infinity."""

SHORT_ID_LENGTH = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One token and its log-probability."""

    token: str
    logprob: float | None
    """Natural logarithm; None for the first token of an echoed prompt, which nothing precedes."""
    token_bytes: bytes
    """Not always valid UTF-8 on their own."""
    top: Sequence[TokenLogprob] = ()
    """The likeliest alternatives, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedToken:
    """A candidate token at some position of a prompt."""

    token_id: int
    token: str
    logprob: float
    rank: int
    """1 is the likeliest."""


PromptLogprobs = Sequence[Sequence[RankedToken] | None]
"""For each token of a prompt, its own and the likeliest ones; None for the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A function call by the model."""

    name: str
    arguments: str
    """A JSON object as text."""
    has_short_id: bool = False
    """Whether its id is made by `short_call_id`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """The thoughts before an answer."""

    text: str
    finish_reason: str
    """`stop`: the model ended them; `budget`: their budget did; `length`: a token limit cut them, and nothing follows.
    """
    has_answer: bool
    """Whether an answer follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedChoice:
    """One finished sequence."""

    index: int
    text: str
    """With tool calls: the text beside them, often empty."""
    finish_reason: str
    """`stop` or `length`."""
    logprobs: Sequence[TokenLogprob] | None = None
    """None: not requested."""
    prompt_logprobs: PromptLogprobs | None = None
    """None: not requested."""
    tool_calls: Sequence[ToolCall] = ()
    reasoning: Reasoning | None = None
    """None: the model did not think, or its thoughts have no marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one line."""

    prompt_tokens: int
    """Counted once, however many choices the line had."""
    completion_tokens: int
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    reasoning_tokens: int = 0
    """Tokens of thoughts among the completion's, without their marks."""

    def wire(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }


def copied_body(body: Mapping[str, Any], response_id: str, *, copy_of: str) -> dict[str, Any]:
    """Build the body of a line that equals line `copy_of` except for its custom_id, from the latter's body.

    Nothing is computed or billed for it, and its usage is zero: the sum over all lines equals the bill.
    """
    usage = Usage(prompt_tokens=0, completion_tokens=0).wire() | {"copy_of": copy_of}
    return {**body, "id": response_id, "usage": usage}


def is_truncated(body: Mapping[str, Any]) -> bool:
    """Return whether a choice of a response was cut at a token limit."""
    return any(choice["finish_reason"] == "length" for choice in body["choices"])


def chat_completion_body(
    response_id: str, model: str, *, created: int, choices: Sequence[GeneratedChoice], usage: Usage
) -> dict[str, Any]:
    """Build the body of a `/v1/chat/completions` response; `created` is in Unix seconds.

    As in vLLM, log-probabilities of the prompt are a field of the whole answer, which has one prompt.
    """
    return {
        "id": response_id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [_chat_choice(choice, response_id) for choice in choices],
        "usage": usage.wire(),
    } | _prompt_logprobs(choices[0])


def text_completion_body(
    response_id: str, model: str, *, created: int, choices: Sequence[GeneratedChoice], usage: Usage
) -> dict[str, Any]:
    """Build the body of a `/v1/completions` response; `created` is in Unix seconds.

    Choice i × n + j is child j of prompt i, in OpenAI's order; the caller numbers them so.
    """
    return {
        "id": response_id,
        "object": "text_completion",
        "created": created,
        "model": model,
        "choices": [_text_choice(choice) for choice in choices],
        "usage": usage.wire(),
    }


def embeddings_body(vectors: Sequence[Sequence[float] | str], *, model: str, num_tokens: int) -> dict[str, Any]:
    """Build the response body of `/v1/embeddings`; a vector is a list of numbers, or their base64."""
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": one} for index, one in enumerate(vectors)],
        "model": model,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }


def rerank_body(
    response_id: str,
    scores: Sequence[tuple[int, float]],
    *,
    model: str,
    num_tokens: int,
    documents: Sequence[str] | None,
) -> dict[str, Any]:
    """Build the response body of `/v1/rerank` from (index, score) in this order; with `documents` each has its text."""
    results: list[dict[str, Any]] = [{"index": index, "relevance_score": score} for index, score in scores]
    if documents is not None:
        results = [result | {"document": {"text": documents[result["index"]]}} for result in results]
    return {
        "id": response_id,
        "model": model,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        "results": results,
    }


def error_body(
    message: str, *, code: str, param: str | None, error_type: str = "invalid_request_error"
) -> dict[str, Any]:
    """Build the body of a response with status ≥ 400; always with all four keys, as clients expect."""
    return {"error": {"message": message, "type": error_type, "param": param, "code": code}}


def short_call_id(origin: str) -> str:
    """Return an id of 9 letters and digits, as Mistral's chat templates require; stable for an origin."""
    return hashlib.blake2b(origin.encode(), digest_size=5).hexdigest()[:SHORT_ID_LENGTH]


def _chat_choice(choice: GeneratedChoice, response_id: str) -> dict[str, Any]:
    logprobs = None
    if choice.logprobs is not None:
        logprobs = {"content": [_chat_logprob(token) for token in choice.logprobs], "refusal": None}
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    finish_reason = choice.finish_reason
    if choice.tool_calls:
        message["content"] = choice.text or None
        message["tool_calls"] = [
            _tool_call(call, f"{response_id}:{choice.index}:{index}") for index, call in enumerate(choice.tool_calls)
        ]
        finish_reason = "tool_calls" if finish_reason == "stop" else finish_reason
    thoughts = {} if choice.reasoning is None else _with_reasoning(message, choice.reasoning)
    return {"index": choice.index, "message": message, "logprobs": logprobs, "finish_reason": finish_reason} | thoughts


def _with_reasoning(message: dict[str, Any], reasoning: Reasoning) -> dict[str, Any]:
    """Add the thoughts to a message, which has no content where no answer followed; return the choice's own field."""
    message["reasoning_content"] = reasoning.text
    if not reasoning.has_answer:
        message["content"] = None
    return {"reasoning_finish_reason": reasoning.finish_reason}


def _tool_call(call: ToolCall, origin: str) -> dict[str, Any]:
    """Build a call; its id is derived from its origin, so that it stays the same when the line is run again."""
    long_id = "call_" + hashlib.blake2b(origin.encode(), digest_size=12).hexdigest()
    call_id = short_call_id(origin) if call.has_short_id else long_id
    return {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _chat_logprob(token: TokenLogprob) -> dict[str, Any]:
    return _plain_logprob(token) | {"top_logprobs": [_plain_logprob(other) for other in token.top]}


def _plain_logprob(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.token, "logprob": _finite(token.logprob), "bytes": list(token.token_bytes)}


def _text_choice(choice: GeneratedChoice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "text": choice.text,
        "logprobs": None if choice.logprobs is None else _text_logprobs(choice.logprobs),
        "finish_reason": choice.finish_reason,
    } | _prompt_logprobs(choice)


def _prompt_logprobs(choice: GeneratedChoice) -> dict[str, Any]:
    """Return vLLM's field of that name, which is absent where it was not requested."""
    if choice.prompt_logprobs is None:
        return {}
    return {"prompt_logprobs": [None if tokens is None else _ranked(tokens) for tokens in choice.prompt_logprobs]}


def _ranked(tokens: Sequence[RankedToken]) -> dict[str, Any]:
    return {
        str(token.token_id): {
            "logprob": _finite(token.logprob),
            "rank": token.rank,
            "decoded_token": token.token,
        }
        for token in tokens
    }


def _text_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    offsets, offset = [], 0
    for token in tokens:
        offsets.append(offset)
        offset += len(token.token)
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": [None if token.logprob is None else _likeliest(token) for token in tokens],
        "text_offset": offsets,
    }


def _likeliest(token: TokenLogprob) -> dict[str, float | None]:
    """Return the alternatives by their text, including the token itself; among equal texts the likeliest counts."""
    alternatives: dict[str, float | None] = {}
    for one in (*token.top, token):
        alternatives.setdefault(one.token, _finite(one.logprob))
    return alternatives


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, MIN_LOGPROB)
