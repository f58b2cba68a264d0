"""Checks of a conversation: roles, text, tool calls and their results.

Pure; the worker turns it into a prompt with the model's chat template.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.lines.body_checks import BodyError, text, unsupported, wrong
from jobs.lines.body_tools import past_calls
from jobs.lines.reading import shown

# OpenAI's "developer" replaced "system"; chat templates of open models use the old name.
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_THOUGHTS = ("reasoning_content", "reasoning")  # DeepSeek's name and ours in answers, and newer vLLM's
_FIELDS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", *_THOUGHTS})
# Fields of API answers that users copy into a history: accepted while empty.
_EMPTY_MESSAGE_FIELDS = frozenset({"refusal", "annotations", "audio", "function_call"})


def messages(name: str, value: Any) -> tuple[Mapping[str, Any], ...]:
    if type(value) is not list:
        raise wrong(name, value, "a list of messages", code="invalid_type")
    if not value:
        raise wrong(name, value, "at least one message")
    return tuple(_message(f"{name}[{index}]", message) for index, message in enumerate(value))


def _message(name: str, value: Any) -> Mapping[str, Any]:
    if type(value) is not dict:
        raise wrong(name, value, "an object with role and content", code="invalid_type")
    _check_fields(name, value)
    role = _role(f"{name}.role", value.get("role"))
    calls, answers = value.get("tool_calls") or None, value.get("tool_call_id")
    content = value.get("content")
    # A message that only calls tools may have no text.
    message: dict[str, Any] = {
        "role": role,
        "content": None if calls and content is None else _content(f"{name}.content", content),
    }
    if calls:
        _check_role(f"{name}.tool_calls", role, "assistant")
        message["tool_calls"] = past_calls(f"{name}.tool_calls", calls)
    if role == "tool":
        message["tool_call_id"] = text(f"{name}.tool_call_id", answers)
    elif answers:
        _check_role(f"{name}.tool_call_id", role, "tool")
    if thoughts := _thoughts(name, value, role):
        message["reasoning_content"] = thoughts
    if value.get("name") is not None:
        message["name"] = text(f"{name}.name", value["name"])
    return message


def _check_fields(name: str, value: Mapping[str, Any]) -> None:
    for key, part in value.items():
        if key in _FIELDS:
            continue
        if key not in _EMPTY_MESSAGE_FIELDS:
            raise BodyError(f"{name}.{key}", f"{name}.{key} is not a field of a message", code="unknown_parameter")
        if part not in (None, [], ""):
            raise unsupported(f"{name}.{key}", f"{name}.{key} is not supported; only text and tool calls are")


def _thoughts(name: str, value: Mapping[str, Any], role: str) -> str:
    """Return an earlier answer's thoughts, under whichever of their names; empty if there are none."""
    given = {key: text(f"{name}.{key}", value[key]) for key in _THOUGHTS if value.get(key) not in (None, "")}
    for key in given:
        _check_role(f"{name}.{key}", role, "assistant")
    if len(set(given.values())) > 1:
        raise BodyError(f"{name}.reasoning", f"{name}.reasoning and {name}.reasoning_content differ; give one of them")
    return str(next(iter(given.values()), ""))


def _check_role(name: str, role: str, allowed: str) -> None:
    if role != allowed:
        raise BodyError(name, f'{name} is given in a message of role "{role}"; only "{allowed}" may have it')


def _role(name: str, value: Any) -> str:
    if value == "function":
        raise unsupported(name, f'{name} is "function"; give the result of a call with role "tool"')
    role = _ROLES.get(value) if type(value) is str else None
    if role is None:
        raise wrong(name, value, "system, developer, user, assistant or tool")
    return role


def _content(name: str, value: Any) -> str:
    """Return the text of a message; text parts are joined by line ends, as vLLM does."""
    if type(value) is str:
        return value
    if type(value) is not list:
        raise wrong(name, value, "a string or a list of text parts", code="invalid_type")
    if not value:
        raise wrong(name, value, "a string or at least one text part")
    return "\n".join(_content_part(f"{name}[{index}]", part) for index, part in enumerate(value))


def _content_part(name: str, part: Any) -> str:
    if type(part) is not dict:
        raise wrong(name, part, "an object with type and text", code="invalid_type")
    kind = part.get("type")
    if kind != "text":
        raise unsupported(f"{name}.type", f'{name}.type is {shown(kind)}; only "text" parts are supported')
    for key in part.keys() - {"type", "text"}:
        raise BodyError(f"{name}.{key}", f"{name}.{key} is not a field of a text part", code="unknown_parameter")
    return str(text(f"{name}.text", part.get("text")))
