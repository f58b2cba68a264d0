"""Writes the request to a server from a parsed line, in the server's dialect. Pure.

Only what the line asks for is sent, and what switches off a default of the server's own. A need that the server does
not meet is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jobs.lines.bodies import ChatRequest, CompletionRequest
from jobs.lines.body_checks import BodyError
from jobs.lines.body_structure import Structure
from jobs.lines.body_template import (
    BUDGET,
    CONTINUE,
    EFFORT,
    GENERATION_PROMPT,
    TRUNCATE,
    VARIABLES,
    TemplateUse,
)
from jobs.lines.body_tools import Choice, ToolUse
from jobs.lines.needs import Need, needs_of
from jobs.lines.sampling import Sampling
from workers.remote.dialects import Dialect
from workers.remote.sizes import Size

Request = ChatRequest | CompletionRequest

_LISTS = frozenset({"stop", "bad_words", "stop_token_ids", "allowed_token_ids"})


def require_needs(request: Request, met: Need, *, engine: str) -> None:
    """Raise BodyError naming what a line needs and the engine does not offer."""
    missing = (needs_of(request) & ~met).names() or ([] if request.truncation is None else [TRUNCATE])
    if missing:
        message = (
            f"{missing[0]} is not offered by the engine that serves this model ({engine}); remove it, or have the "
            "model served by an engine that offers it"
        )
        raise BodyError(missing[0], message, code="unsupported_parameter")


def tokens_of(request: Request, size: Size, met: Need) -> Sequence[Sequence[int]] | None:
    """Return the prompts that are sent as token ids, so that the server computes what was counted; None: as text.

    A conversation is sent so unless its answer must be read by the server: calls, thoughts, structure, scores.
    """
    if size.prompts is None or Need.TOKEN_PROMPTS not in met:
        return None
    if isinstance(request, ChatRequest):
        sampling = request.sampling
        is_plain = request.tool_use is None and request.structure is None and request.template.budget is None
        is_plain = is_plain and not size.has_thoughts
        return size.prompts if is_plain and sampling.logprobs is None and sampling.prompt_logprobs is None else None
    return None if request.echo else size.prompts


def require_honest(request: Request, size: Size) -> None:
    """Raise BodyError for a conversation sent as text in which the server would read special tokens of a user's."""
    if isinstance(request, ChatRequest) and size.is_forged():
        message = (
            "messages hold a special token of this model, which the engine that serves it would not read as text; "
            "leave it out"
        )
        raise BodyError("messages", message, code="unsupported_parameter")


def body_of(
    request: Request,
    dialect: Dialect,
    *,
    model: str,
    seed: int | None,
    max_tokens: int | None,
    tokens: Sequence[Sequence[int]] | None = None,
) -> dict[str, Any]:
    """Return the body to send; `seed` and `max_tokens` are sent unless None, `tokens` in place of texts."""
    body: dict[str, Any] = {"model": model, "stream": False, **dialect.neutral}
    if tokens is not None:
        body |= {"prompt": _prompt([list(prompt) for prompt in tokens])}
        body |= {} if isinstance(request, ChatRequest) else _completion_logprobs(request.sampling, dialect)
    elif isinstance(request, ChatRequest):
        body |= {"messages": [dict(message) for message in request.messages]}
        body |= {} if request.tool_use is None else _tools(request.tool_use, dialect)
        body |= _template(request.template, dialect)
        body |= _chat_logprobs(request.sampling, dialect)
    else:
        body |= {"prompt": _prompt(request.prompts)}
        body |= {"echo": True} if request.echo else {}
        body |= _completion_logprobs(request.sampling, dialect)
    body |= _sampling(request.sampling, dialect)
    if request.structure is not None:
        body |= _structure(request.structure, dialect)
    if seed is not None:
        body["seed"] = seed
    if max_tokens is not None:
        body[limit_name(body, dialect)] = max_tokens
    return body


def limit_name(body: Mapping[str, Any], dialect: Dialect) -> str:
    """Return the name of the field that limits an answer."""
    return dialect.token_limit if "messages" in body else "max_tokens"


def _prompt(prompts: Sequence[str | Sequence[int]]) -> Any:
    """Return one prompt as itself: some servers take no lists."""
    return prompts[0] if len(prompts) == 1 else list(prompts)


def _sampling(sampling: Sampling, dialect: Dialect) -> dict[str, Any]:
    body: dict[str, Any] = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    for name, default in (("n", 1), ("presence_penalty", 0.0), ("frequency_penalty", 0.0), ("stop", ())):
        if (value := getattr(sampling, name)) != default:
            body[name] = list(value) if name in _LISTS else value
    if sampling.logit_bias:
        body["logit_bias"] = {str(token_id): bias for token_id, bias in sampling.logit_bias}
    defaults = Sampling()
    for name, own_name in dialect.names.items():
        if (value := getattr(sampling, name)) != getattr(defaults, name):
            body[own_name] = list(value) if name in _LISTS else value
    return body


def _template(use: TemplateUse, dialect: Dialect) -> dict[str, Any]:
    """Return what a server gives its chat template. Raise BodyError for what it does not take."""
    body: dict[str, Any] = {}
    if use.variables:
        if VARIABLES in dialect.template:
            body[VARIABLES] = dict(use.variables)
        else:
            body |= {
                _offered(EFFORT if name == EFFORT else VARIABLES, dialect): use.variables[name]
                for name in use.variables
            }
    if use.budget is not None:
        body[_offered(BUDGET, dialect)] = use.budget
    if use.continues:
        body |= {_offered(CONTINUE, dialect): True, GENERATION_PROMPT: False}
    return body


def _offered(param: str, dialect: Dialect) -> str:
    if param in dialect.template:
        return param
    message = f"{param} is not offered by the engine that serves this model ({dialect.kind}); remove it"
    raise BodyError(param, message, code="unsupported_parameter")


def _chat_logprobs(sampling: Sampling, dialect: Dialect) -> dict[str, Any]:
    num = _num_logprobs(sampling, dialect)
    return {} if num is None else {"logprobs": True, "top_logprobs": num}


def _completion_logprobs(sampling: Sampling, dialect: Dialect) -> dict[str, Any]:
    num = _num_logprobs(sampling, dialect)
    return {} if num is None else {"logprobs": num}


def _num_logprobs(sampling: Sampling, dialect: Dialect) -> int | None:
    return None if sampling.logprobs is None else max(sampling.logprobs, dialect.least_logprobs)


def _tools(tool_use: ToolUse, dialect: Dialect) -> dict[str, Any]:
    is_strict = dialect.asks_for_strict_tools and tool_use.choice is Choice.REQUIRED  # also where one is named
    body: dict[str, Any] = {"tools": [_strict(tool) if is_strict else dict(tool) for tool in tool_use.offered]}
    if tool_use.callable is not tool_use.offered:  # one of them, which leaves no parallel calls
        (tool,) = tool_use.callable
        return body | forced_call(_strict(tool) if is_strict else dict(tool), dialect)
    if tool_use.choice is Choice.REQUIRED:
        body["tool_choice"] = "required"
    return body if tool_use.is_parallel else body | {"parallel_tool_calls": False}


def forced_call(tool: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    """Return the fields that force a call of a tool; `tools` are the offered ones where only it may be offered."""
    if dialect.takes_tool_by_name:
        return {"tool_choice": {"type": "function", "function": {"name": tool["function"]["name"]}}}
    return {"tools": [tool], "tool_choice": "required"}


def _strict(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    return {**tool, "function": {**function, "strict": True}} if function.get("strict") is None else dict(tool)


def _structure(structure: Structure, dialect: Dialect) -> dict[str, Any]:
    fields = structure.fields
    if "json_object" in fields:
        return {"response_format": {"type": "json_object"}}
    if "json" in fields:
        return {"response_format": _schema_format(structure, dialect)}
    assert dialect.has_structured_outputs, "its needs are not met"
    return {"structured_outputs": _structured_outputs(fields)}


def _schema_format(structure: Structure, dialect: Dialect) -> dict[str, Any]:
    value = structure.fields["json"]
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise BodyError(structure.param, f"{structure.param} is not valid JSON: {error}") from None
    return schema_format(value, dialect)


def schema_format(value: Any, dialect: Dialect) -> dict[str, Any]:
    """Return the `response_format` of a schema."""
    if dialect.puts_schema_into_json_object:
        return {"type": "json_object", "schema": value}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": value, "strict": True}}


def _structured_outputs(fields: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {name: fields[name] for name in ("regex", "choice", "grammar") if name in fields}
    return {name: list(value) if name == "choice" else value for name, value in kinds.items()}
