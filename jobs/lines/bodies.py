"""Parse the bodies of the generating endpoints: each parameter is supported, ignored as harmless, or refused by name.

Pure: the parsed body in, a frozen request out; no SQL, no tokenizer, no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jobs.lines.body_checks import (
    MAX_ANSWERS,
    BodyError,
    Check,
    flag,
    in_range,
    object_,
    only,
    prompts,
    refused,
    text,
    unsupported,
    whole,
)
from jobs.lines.body_context import ContextRequest, check_placeholder, context, no_context
from jobs.lines.body_messages import messages
from jobs.lines.body_structure import ONE_OF_AS_ANY_OF, STRUCTURES, Structure, structure_of
from jobs.lines.body_template import PLAIN_USE, TEMPLATE, TRUNCATE, TemplateUse, template_use, truncation
from jobs.lines.body_tools import ToolUse, tool_choice, tool_use_of, tools
from jobs.lines.sampling import CHECKS, Sampling

CHAT_ENDPOINT = "/v1/chat/completions"
COMPLETION_ENDPOINT = "/v1/completions"

COMPLETION_MAX_TOKENS = 16
"""Default of `/v1/completions` where `max_tokens` is absent, as OpenAI documents it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A conversation for the model's chat template, with roles system, user, assistant and tool.

    The content is a string, or None in a message with tool calls and no text; their arguments are JSON text.
    """

    messages: tuple[Mapping[str, Any], ...]
    sampling: Sampling
    given: frozenset[str] = field(default=frozenset(), compare=False)
    """The sampling parameters that the line sets; the others have defaults."""
    structure: Structure | None = None
    tool_use: ToolUse | None = None
    context: ContextRequest | None = None
    template: TemplateUse = PLAIN_USE
    truncation: int | None = None
    """The most tokens of the prompt, of which the last are kept; −1 for as many as fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """Prompts, each answered `sampling.n` times."""

    prompts: tuple[str | tuple[int, ...], ...]
    """As text or token ids."""
    sampling: Sampling
    given: frozenset[str] = field(default=frozenset(), compare=False)
    """As in a ChatRequest."""
    structure: Structure | None = None
    echo: bool = False
    """Whether an answer starts with its prompt."""
    truncation: int | None = None
    """As in a ChatRequest, for each prompt."""


def parse_body(endpoint: str, body: Mapping[str, Any]) -> ChatRequest | CompletionRequest:
    """Parse and check the body of a line of a generating endpoint. Raises BodyError naming the parameter.

    A null means "not given". A parameter without effect at the given value is accepted; one whose effect the engine
    does not offer is refused.
    """
    if endpoint == CHAT_ENDPOINT:
        return chat_request(body)
    assert endpoint == COMPLETION_ENDPOINT, endpoint
    return completion_request(body)


def chat_request(body: Mapping[str, Any]) -> ChatRequest:
    """As `parse_body`, for this endpoint."""
    values = _checked(body, _CHAT)
    if "messages" not in values:
        raise BodyError("messages", "messages is missing; give the conversation", code="missing_required_parameter")
    structure, tool_use = structure_of(values), tool_use_of(values)
    if structure is not None and tool_use is not None:
        raise BodyError("tools", f"tools and {structure.param} are both given; give one, or tool_choice none")
    return ChatRequest(
        messages=values["messages"],
        sampling=_sampling(values, logprobs=_chat_logprobs(values)),
        given=frozenset(values.keys() & CHECKS.keys()),
        structure=structure,
        tool_use=tool_use,
        context=_context(values),
        template=template_use(values),
        truncation=values.get(TRUNCATE),
    )


def completion_request(body: Mapping[str, Any]) -> CompletionRequest:
    """As `parse_body`, for this endpoint."""
    values = _checked(body, _COMPLETION)
    if "prompt" not in values:
        raise BodyError("prompt", "prompt is missing; give text or token ids", code="missing_required_parameter")
    values.setdefault("max_tokens", COMPLETION_MAX_TOKENS)
    if values.get("best_of", values.get("n", 1)) != values.get("n", 1):
        raise unsupported("best_of", "best_of other than n is not supported; raise n and choose for yourself")
    echo = values.get("echo", False)
    if values["max_tokens"] == 0 and not echo:
        raise BodyError("max_tokens", "max_tokens is 0; it must be at least 1, or echo must be true")
    sampling = _sampling(values, logprobs=values.get("logprobs"))
    num_prompts, num_answers = len(values["prompt"]), len(values["prompt"]) * sampling.n
    if num_answers > MAX_ANSWERS:
        total = f"prompt holds {num_prompts:,} prompts and n is {sampling.n}: {num_answers:,} answers"
        raise BodyError("n", f"{total}; {MAX_ANSWERS:,} are allowed in a line. Use more lines")
    if echo and TRUNCATE in values:
        raise BodyError(TRUNCATE, f"{TRUNCATE} and echo are both given, and an echo has its whole prompt; drop one")
    return CompletionRequest(
        prompts=values["prompt"],
        sampling=sampling,
        given=frozenset(values.keys() & CHECKS.keys()),
        structure=structure_of(values),
        echo=echo,
        truncation=values.get(TRUNCATE),
    )


def _checked(body: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """Return the checked values of the given parameters."""
    values = {}
    for name, value in body.items():
        check = checks.get(name)
        if check is None:
            message = f"{name} is not a parameter of this endpoint; remove it"
            raise BodyError(name, message, code="unknown_parameter")
        if value is not None:
            values[name] = check(name, value)
    return values


def _context(values: Mapping[str, Any]) -> ContextRequest | None:
    """Return the passages that a checked body requests. Raises BodyError where it lacks their placeholder."""
    request: ContextRequest | None = values.get("context")
    if request is not None:
        check_placeholder(values["messages"])
    return request


def _sampling(values: Mapping[str, Any], *, logprobs: int | None) -> Sampling:
    max_tokens = _max_tokens(values)
    min_tokens = values.get("min_tokens", 0)
    if max_tokens is not None and min_tokens > max_tokens:
        raise BodyError("min_tokens", f"min_tokens is {min_tokens}; it must not be above max_tokens, {max_tokens}")
    sampling = {name: value for name, value in values.items() if name in CHECKS}
    return Sampling(**sampling | {"max_tokens": max_tokens, "logprobs": logprobs})


def _max_tokens(values: Mapping[str, Any]) -> int | None:
    old, new = values.get("max_tokens"), values.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        message = f"max_tokens is {old} and max_completion_tokens is {new}; give one of them"
        raise BodyError("max_completion_tokens", message)
    return old if new is None else new


def _chat_logprobs(values: Mapping[str, Any]) -> int | None:
    if values.get("logprobs", False):
        return int(values.get("top_logprobs", 0))
    if values.get("top_logprobs", 0):
        raise BodyError("top_logprobs", "top_logprobs needs logprobs to be true")
    return None


# --- the parameters of the endpoints ---------------------------------------------------------------------------------

_SHARED: dict[str, Check] = {
    **CHECKS,
    **STRUCTURES,
    ONE_OF_AS_ANY_OF: flag,
    "model": text,  # matched with the batch by validation
    "max_tokens": whole(1),
    TRUNCATE: truncation,
    "user": text,
    "stream": only(False),
    "stream_options": refused,
}

_CHAT: dict[str, Check] = {
    **_SHARED,
    **TEMPLATE,
    "messages": messages,
    "context": context,
    "max_completion_tokens": whole(1),
    "logprobs": flag,
    "top_logprobs": in_range("logprobs"),
    "tools": tools,
    "functions": only([]),
    "tool_choice": tool_choice,
    "function_call": only("none", "auto"),
    "parallel_tool_calls": flag,
    "modalities": only(["text"]),
    "metadata": object_,
    "store": only(False),
    "service_tier": only("auto", "default"),
    "safety_identifier": text,
    "prompt_cache_key": text,  # ignored: prefixes are shared by their content
    "prompt_cache_options": refused,
    "prompt_cache_retention": refused,
    "audio": refused,
    "moderation": refused,
    "prediction": refused,
    "verbosity": refused,
    "web_search_options": refused,
}

_COMPLETION: dict[str, Check] = _SHARED | {
    "prompt": prompts,
    "context": no_context,
    "max_tokens": whole(0),  # 0 for the prompt's log-probabilities alone
    "logprobs": in_range("logprobs"),
    "best_of": in_range("n"),
    "echo": flag,
    "suffix": only(""),
}
