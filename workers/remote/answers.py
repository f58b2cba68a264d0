"""Turns a server's answer into the result of a line: our id and model name, checked counts, the engine's name. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jobs.engines.engine import ServingEngine
from jobs.lines.responses import Usage
from workers.remote.reading import THOUGHTS
from workers.remote.sizes import Size, Sizes
from workers.remote.verdicts import Answered, Counts

_OURS = frozenset({"id", "object", "created", "model", "usage", "choices"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Billed:
    """Tokens that a line is billed for."""

    usage: Usage
    is_ours: bool
    """Whether we counted them, as the server's counts were missing or cannot be true."""


def billed(answer: Answered, size: Size, sizes: Sizes) -> Billed | None:
    """Return the tokens to bill: the server's, or our own count. None where nobody has counted.

    Never more than the line's bounds, which its tenant's budget covers.
    """
    if answer.counts is not None:
        counts = _within(answer.counts, size)
        if counts.reasoning_tokens is None:
            counted = [sizes.count(text) for choice in answer.body.get("choices", ()) for text in _thoughts(choice)]
            thoughts = min(sum(one for one in counted if one is not None), counts.completion_tokens)
            counts = replace(counts, reasoning_tokens=thoughts)
        return Billed(usage=_usage(counts), is_ours=False)
    if not size.is_exact:
        return None
    counted = [sizes.count(text) for choice in answer.body.get("choices", ()) for text in _texts(choice)]
    tokens = sum(one for one in counted if one is not None)
    own = Counts(prompt_tokens=size.num_prompt_tokens, completion_tokens=min(tokens, size.most_output_tokens))
    return Billed(usage=_usage(own), is_ours=True)


def _within(counts: Counts, size: Size) -> Counts:
    """Return counts without the part of a prompt that a server outside the house read beyond the context."""
    prompt = min(counts.prompt_tokens, size.num_prompt_tokens)
    return replace(counts, prompt_tokens=prompt, cached_tokens=min(counts.cached_tokens, prompt))


def _usage(counts: Counts) -> Usage:
    return Usage(
        prompt_tokens=counts.prompt_tokens,
        completion_tokens=counts.completion_tokens,
        cached_tokens=counts.cached_tokens,
        reasoning_tokens=counts.reasoning_tokens or 0,
    )


def _thoughts(choice: Mapping[str, Any]) -> list[str]:
    message = choice.get("message") or {}
    return [text for text in (message.get(name) for name in THOUGHTS) if text][:1]


def _texts(choice: Mapping[str, Any]) -> list[str]:
    """Return everything that a choice's tokens made: its text, its thoughts, the arguments of its calls."""
    message = choice.get("message")
    if not isinstance(message, dict):
        return [choice["text"]]
    texts = [message.get("content"), *_thoughts(choice)]
    calls = message.get("tool_calls") or []
    texts += [call["function"][name] for call in calls for name in ("name", "arguments")]
    return [text for text in texts if isinstance(text, str)]


def body_of(
    answer: Answered,
    billed: Billed,
    *,
    response_id: str,
    is_chat: bool,
    created: int,
    model: str,
    engine: ServingEngine,
    context: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the body of a result. What else the server gives is passed on: thoughts, fingerprints, its own fields.

    Fields that are null are not: vLLM has 20 of them in an answer.
    """
    given = {name: value for name, value in answer.body.items() if name not in _OURS and value is not None}
    return {
        "id": response_id,
        "object": "chat.completion" if is_chat else "text_completion",
        "created": created,
        "model": model,
        "choices": [_shown_choice(_with_message(choice) if is_chat else choice) for choice in answer.body["choices"]],
        "usage": _shown_usage(answer, billed),
        **given,
        "engine": engine.wire(),
        **({} if context is None else {"context": context}),
    }


def _shown_choice(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    shown = {"logprobs": None} | {name: value for name, value in choice.items() if value is not None}
    if "message" not in shown:
        return shown
    message = {name: value for name, value in shown["message"].items() if name not in THOUGHTS}
    message = {name: value for name, value in message.items() if value is not None or name == "content"}
    return shown | ({"message": message} if not _thoughts(choice) else _with_thoughts(choice, message))


def _with_thoughts(choice: Mapping[str, Any], message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a choice's message and the end of its thoughts, in the form of our own engine."""
    has_answer = bool(message["content"] or message.get("tool_calls"))
    is_cut = choice["finish_reason"] == "length" and not has_answer
    shown = {**message, "reasoning_content": _thoughts(choice)[0].strip()}
    if message["content"] is not None:
        shown["content"] = None if is_cut else message["content"].lstrip()
    return {"message": shown, "reasoning_finish_reason": "length" if is_cut else "stop"}


def _with_message(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a conversation's choice; the answer to a prompt of token ids has a text instead of a message."""
    if "message" in choice:
        return choice
    kept = {name: choice[name] for name in ("index", "finish_reason", "stop_reason") if name in choice}
    return kept | {"logprobs": None, "message": {"role": "assistant", "content": choice["text"]}}


def _shown_usage(answer: Answered, billed: Billed) -> dict[str, Any]:
    usage = billed.usage.wire()
    if billed.is_ours:
        return usage | {"counted_by": "tokenmill"}
    details = answer.body["usage"].get("completion_tokens_details")
    return usage | ({"completion_tokens_details": details} if isinstance(details, dict) else {})
