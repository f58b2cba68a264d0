"""Checks of tools in a chat body: those offered, the tool choice, and calls in the history.

Pure; the worker describes tools to the model and parses its calls.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from jobs.lines.body_checks import BodyError, flag, object_, refuse_unknown, text, unsupported, wrong

MAX_TOOLS = 128  # as OpenAI documents it
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Choice(StrEnum):
    """Whether the model calls a tool."""

    NONE = "none"  # never
    AUTO = "auto"  # if the model chooses to
    REQUIRED = "required"  # always


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools of a request, unchanged."""

    offered: tuple[Mapping[str, Any], ...]
    """All of them, as described to the model."""
    callable: tuple[Mapping[str, Any], ...]
    """Tools that may be called: only one where the choice names it."""
    choice: Choice
    """Never NONE; REQUIRED where the choice names a tool."""
    is_parallel: bool
    """Whether one answer may hold several calls."""
    one_of_as_any_of: bool = False
    """Whether `oneOf` in the functions' schemas is treated as `anyOf`."""


def tools(name: str, value: Any) -> tuple[Mapping[str, Any], ...]:
    if type(value) is not list:
        raise wrong(name, value, "a list of tools", code="invalid_type")
    if len(value) > MAX_TOOLS:
        raise BodyError(name, f"{name} holds {len(value)} tools; {MAX_TOOLS} are allowed")
    offered = tuple(_tool(f"{name}[{index}]", tool) for index, tool in enumerate(value))
    names = [tool["function"]["name"] for tool in offered]
    for one in names:
        if names.count(one) > 1:
            raise BodyError(name, f"{name} has the function {one} more than once; give each its own name")
    return offered


def _tool(name: str, value: Any) -> Mapping[str, Any]:
    if type(value) is not dict:
        raise wrong(name, value, "an object with type and function", code="invalid_type")
    if value.get("type") != "function":
        raise unsupported(f"{name}.type", f'{name}.type must be "function"; other tools are not supported')
    refuse_unknown(name, value, {"type", "function"})
    function = object_(f"{name}.function", value.get("function"))
    refuse_unknown(f"{name}.function", function, {"name", "description", "parameters", "strict"})
    _function_name(f"{name}.function.name", function.get("name"))
    for key, check in (("description", text), ("parameters", object_), ("strict", flag)):
        if function.get(key) is not None:
            check(f"{name}.function.{key}", function[key])
    return value


def tool_choice(name: str, value: Any) -> Choice | str:
    """Return the choice, or "function:" and the name of the only tool to call."""
    if type(value) is str:
        if value not in tuple(Choice):
            raise wrong(name, value, '"none", "auto", "required" or an object that names a function')
        return Choice(value)
    kind = object_(name, value).get("type")
    if kind != "function":
        raise unsupported(f"{name}.type", f'{name}.type must be "function"; other choices are not supported')
    refuse_unknown(name, value, {"type", "function"})
    function = object_(f"{name}.function", value.get("function"))
    return f"function:{_function_name(f'{name}.function.name', function.get('name'))}"


def tool_use_of(values: Mapping[str, Any]) -> ToolUse | None:
    """Combine a body's checked tools and choice; None when no tool may be called. Raises BodyError."""
    offered: tuple[Mapping[str, Any], ...] = values.get("tools", ())
    choice = values.get("tool_choice", Choice.AUTO)
    if not offered and choice not in (Choice.NONE, Choice.AUTO):
        raise BodyError("tool_choice", "tool_choice asks for a call and tools is empty; give the tools")
    if not offered or choice == Choice.NONE:
        return None
    callable_ = offered
    if choice not in tuple(Choice):
        tool_name = choice.removeprefix("function:")
        callable_ = tuple(tool for tool in offered if tool["function"]["name"] == tool_name)
        if not callable_:
            raise BodyError("tool_choice", f"tool_choice names {tool_name}, which is not among the tools")
    is_named = callable_ is not offered
    return ToolUse(
        offered=offered,
        callable=callable_,
        choice=Choice.REQUIRED if is_named else Choice(choice),
        is_parallel=values.get("parallel_tool_calls", True) and not is_named,
        one_of_as_any_of=values.get("one_of_as_any_of", False),
    )


def past_calls(name: str, value: Any) -> list[dict[str, Any]]:
    """Check the `tool_calls` of an assistant's message; `arguments` remain JSON text."""
    if type(value) is not list:
        raise wrong(name, value, "a list of tool calls", code="invalid_type")
    return [_past_call(f"{name}[{index}]", call) for index, call in enumerate(value)]


def _past_call(name: str, value: Any) -> dict[str, Any]:
    refuse_unknown(name, object_(name, value), {"id", "type", "function", "index"})
    function = object_(f"{name}.function", value.get("function"))
    refuse_unknown(f"{name}.function", function, {"name", "arguments"})
    if value.get("type", "function") != "function":
        raise unsupported(f"{name}.type", f'{name}.type must be "function"; other tools are not supported')
    call_id = text(f"{name}.id", value.get("id"))
    called = _function_name(f"{name}.function.name", function.get("name"))
    arguments = text(f"{name}.function.arguments", function.get("arguments")) or "{}"
    try:
        object_(f"{name}.function.arguments", orjson.loads(arguments))
    except orjson.JSONDecodeError as error:
        raise BodyError(f"{name}.function.arguments", f"{name}.function.arguments is not valid JSON: {error}") from None
    return {"id": call_id, "type": "function", "function": {"name": called, "arguments": arguments}}


def _function_name(name: str, value: Any) -> str:
    if not _NAME.fullmatch(text(name, value)):
        raise wrong(name, value, "1 to 64 letters, digits, underscores and hyphens")
    return str(value)
