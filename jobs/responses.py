"""Response bodies of the line endpoints, as OpenAI's API shapes them.

Pure: generated text and counts in, JSON-ready dictionaries out; no SQL, no engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

MIN_LOGPROB: Final = -9999.0
"""What the API shows for a probability of zero: JSON has no minus infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One token and its natural log-probability; `top` holds the likeliest alternatives, best first."""

    token: str
    logprob: float
    token_bytes: bytes  # not always valid UTF-8 on their own
    top: Sequence["TokenLogprob"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedChoice:
    """One finished sequence. `finish_reason` is "stop" or "length"."""

    index: int
    text: str
    finish_reason: str
    logprobs: Sequence[TokenLogprob] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one line: the prompt is counted once, however many choices it had."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def wire(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


def chat_completion_body(
    response_id: str, model: str, *, created: int, choices: Sequence[GeneratedChoice], usage: Usage
) -> dict[str, Any]:
    """Build the body of a `/v1/chat/completions` response; `created` is in Unix seconds."""
    return {
        "id": response_id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [_chat_choice(choice) for choice in choices],
        "usage": usage.wire(),
    }


def text_completion_body(
    response_id: str, model: str, *, created: int, choices: Sequence[GeneratedChoice], usage: Usage
) -> dict[str, Any]:
    """Build the body of a `/v1/completions` response; `created` is in Unix seconds.

    Choice i × n + j is child j of prompt i, as OpenAI orders them; the caller numbers them so.
    """
    return {
        "id": response_id,
        "object": "text_completion",
        "created": created,
        "model": model,
        "choices": [_text_choice(choice) for choice in choices],
        "usage": usage.wire(),
    }


def error_body(
    message: str, *, code: str, param: str | None, error_type: str = "invalid_request_error"
) -> dict[str, Any]:
    """Build the body of a response with status ≥ 400; all four keys always, as clients expect."""
    return {"error": {"message": message, "type": error_type, "param": param, "code": code}}


def _chat_choice(choice: GeneratedChoice) -> dict[str, Any]:
    logprobs = None
    if choice.logprobs is not None:
        logprobs = {"content": [_chat_logprob(token) for token in choice.logprobs], "refusal": None}
    return {
        "index": choice.index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason,
    }


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
    }


def _text_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    offsets, offset = [], 0
    for token in tokens:
        offsets.append(offset)
        offset += len(token.token)
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": [{other.token: _finite(other.logprob) for other in token.top} for token in tokens],
        "text_offset": offsets,
    }


def _finite(logprob: float) -> float:
    return max(logprob, MIN_LOGPROB)
