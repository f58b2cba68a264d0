"""Reads a server's 200: is it an answer, is it complete, and is it of the line that was asked? Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeGuard

import orjson

from workers.remote.logprobs import logprobs_of
from workers.remote.statuses import verdict_of_status
from workers.remote.verdicts import Answered, Counts, Spoilt, Verdict

REQUEST_ID = re.compile(r"tokenmill-[0-9a-f]{32}")
"""The form of the ids that are sent as X-Request-Id."""

THOUGHTS = ("reasoning_content", "reasoning")
"""Names of a message's thoughts: DeepSeek's, and newer vLLM's."""
_ENDS = frozenset({"stop", "length", "tool_calls", "content_filter"})
_RESULTS = frozenset({"choices", "data", "results"})
_NO_ERROR: Mapping[str, str] = {}


class Awaited(Protocol):
    """What an answer must be."""

    @property
    def answers_as(self) -> str | None:
        """Return the name under which the server answered when it was probed; None: not known yet."""

    @property
    def most_prompt_tokens(self) -> int: ...
    @property
    def most_completion_tokens(self) -> int: ...

    def read(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the checked parts of a body. Raise NotAnAnswerError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What an answer with generated text must be."""

    is_chat: bool
    num_choices: int
    num_logprobs: int | None = None
    """Alternatives of each token that are asked for; None: no log-probabilities."""
    answers_as: str | None = None
    """The name under which the server answered when it was probed; None: not known yet."""
    most_prompt_tokens: int
    most_completion_tokens: int

    def read(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the choices, in order. Raise NotAnAnswerError."""
        return {"choices": _choices(body, self)}


class NotAnAnswerError(Exception):
    """Why not, as the end of a sentence that begins with "the server's answer"."""


def verdict_of_answer(content: bytes, expected: Awaited, *, request_id: str, now: datetime) -> Verdict:
    """Return what a body means that came with status 200 to the request of this id."""
    try:
        body = _object(content)
    except NotAnAnswerError as reason:
        return Spoilt(reason=f"the server's answer {reason}", is_lasting=True)
    if "error" in body and not _RESULTS & body.keys():
        return _error_in_200(body["error"], content, now=now)
    counts = counts_of(body.get("usage"), expected)
    excess = _excess(body.get("usage")) if counts is None else None
    try:
        _check_origin(body, expected, request_id=request_id)
        found = expected.read(body)
    except NotAnAnswerError as reason:
        return Spoilt(reason=f"the server's answer {reason}", paid=counts, excess=excess, is_lasting=True)
    return Answered(body={**body, **found}, counts=counts, excess=excess)


def _object(content: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(content)  # which takes neither NaN nor what is not UTF-8
    except orjson.JSONDecodeError as error:
        raise NotAnAnswerError(f"is no JSON ({len(content):,} bytes): {error.msg}") from None
    if not isinstance(body, dict):
        raise NotAnAnswerError("is no JSON object")
    return body


def _error_in_200(error: Any, content: bytes, *, now: datetime) -> Verdict:
    """Gateways answer 200 and put the status into the body."""
    code = error.get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) and 400 <= code < 600 else 500
    return verdict_of_status(status, _NO_ERROR, content, now=now)


def _check_origin(body: Mapping[str, Any], expected: Awaited, *, request_id: str) -> None:
    """Check that the answer belongs to this request, where the server repeats its id, and to the model that was asked.

    A connection carries one request at a time and is closed after any failure, so this is a second guard.
    """
    echoed = REQUEST_ID.search(str(body.get("id", "")))
    if echoed is not None and echoed[0] != request_id:
        raise NotAnAnswerError("has the id of another line")
    if expected.answers_as is not None and body.get("model") != expected.answers_as:
        raise NotAnAnswerError(f"is of the model {str(body.get('model'))[:80]!r}, not of {expected.answers_as!r}")


def _choices(body: Mapping[str, Any], expected: Expected) -> list[dict[str, Any]]:
    choices = body.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise NotAnAnswerError("has no list of choices")
    if len(choices) != expected.num_choices:
        raise NotAnAnswerError(f"has {len(choices)} choices instead of {expected.num_choices}")
    indexes = [choice.get("index") for choice in choices]
    if sorted(indexes, key=str) != sorted(range(len(choices)), key=str):
        raise NotAnAnswerError("does not number its choices")
    ordered = sorted(choices, key=lambda choice: int(choice["index"]))
    return [_choice(choice, expected) for choice in ordered]


def _choice(choice: Mapping[str, Any], expected: Expected) -> dict[str, Any]:
    reason = choice.get("finish_reason")
    if reason not in _ENDS:
        raise NotAnAnswerError(f"has the finish_reason {str(reason)[:40]!r}")
    read = {**choice, **(_with_message(choice) if expected.is_chat else _with_text(choice))}
    if expected.num_logprobs is None:
        return read
    logprobs = logprobs_of(choice.get("logprobs"), is_chat=expected.is_chat, num_top=expected.num_logprobs)
    if logprobs is None:
        raise NotAnAnswerError("lacks log-probabilities that are numbers")
    return read | {"logprobs": logprobs}


def _with_message(choice: Mapping[str, Any]) -> dict[str, Any]:
    message = choice.get("message")
    if not isinstance(message, dict):
        raise NotAnAnswerError("has a choice without a message")
    content, calls = message.get("content"), message.get("tool_calls")
    if not isinstance(content, str | None):
        raise NotAnAnswerError("has a message whose content is no text")
    if calls and not (isinstance(calls, list) and all(map(_is_call, calls))):
        raise NotAnAnswerError("has a tool call without a name or arguments")
    if not all(isinstance(message.get(name), str | None) for name in THOUGHTS):
        raise NotAnAnswerError("has thoughts that are no text")
    return {"message": {**message, "role": "assistant", "content": content if calls else content or ""}}


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and all(isinstance(function.get(key), str) for key in ("name", "arguments"))


def _with_text(choice: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(choice.get("text"), str):
        raise NotAnAnswerError("has a choice without a text")
    return {"text": choice["text"]}


def counts_of(usage: Any, expected: Awaited) -> Counts | None:
    """Return the server's counts; None where one is missing or cannot be true: negative, or above the line's bounds."""
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not expected.most_completion_tokens:  # vectors and scores: some servers count the total alone
        prompt, completion = usage.get("total_tokens") if prompt is None else prompt, 0
    if not _is_within(prompt, 1, expected.most_prompt_tokens):
        return None
    if not _is_within(completion, 0, expected.most_completion_tokens):
        return None
    cached = _inner(usage, "prompt_tokens_details").get("cached_tokens")
    thoughts = _inner(usage, "completion_tokens_details").get("reasoning_tokens")
    return Counts(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached if _is_within(cached, 0, prompt) else 0,
        reasoning_tokens=thoughts if _is_within(thoughts, 0, completion) else None,
    )


def _excess(usage: Any) -> Counts | None:
    """Return counts that cannot be true, as far as they are numbers of tokens; None where there is none."""
    if not isinstance(usage, dict):
        return None
    prompt, completion = (_number_of(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
    prompt = prompt or max(0, _number_of(usage.get("total_tokens")) - completion)
    return Counts(prompt_tokens=prompt, completion_tokens=completion) if prompt or completion else None


def _number_of(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _inner(usage: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = usage.get(name)
    return value if isinstance(value, dict) else {}


def _is_within(value: Any, low: int, high: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
