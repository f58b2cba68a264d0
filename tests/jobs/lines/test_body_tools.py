"""What lines may say of tools: offers, choices and a history with calls, each read or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.lines.bodies import CHAT_ENDPOINT, ChatRequest, parse_body
from jobs.lines.body_checks import BodyError
from jobs.lines.body_tools import MAX_TOOLS, Choice, ToolUse


def tool(name: str = "weather", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def parse(**fields: Any) -> ChatRequest:
    found = parse_body(CHAT_ENDPOINT, {"messages": [{"role": "user", "content": "x"}], **fields})
    assert isinstance(found, ChatRequest)
    return found


WEATHER, TIME = tool(description="d", parameters={"type": "object"}, strict=True), tool("time")
NAMED = {"type": "function", "function": {"name": "time"}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ToolUse(offered=(WEATHER, TIME), callable=(WEATHER, TIME), choice=Choice.AUTO, is_parallel=True)),
        (
            {"tool_choice": "required", "parallel_tool_calls": False},
            ToolUse(offered=(WEATHER, TIME), callable=(WEATHER, TIME), choice=Choice.REQUIRED, is_parallel=False),
        ),
        (
            {"tool_choice": NAMED},
            ToolUse(offered=(WEATHER, TIME), callable=(TIME,), choice=Choice.REQUIRED, is_parallel=False),
        ),
        ({"tool_choice": "none"}, None),
    ],
)
def test_tools_and_their_choice_are_read(fields: dict[str, Any], expected: ToolUse | None) -> None:
    assert parse(tools=[WEATHER, TIME], **fields).tool_use == expected


def test_a_history_may_hold_calls_and_their_results() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "time", "arguments": '{"zone": "UTC"}'}}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
    ]
    _, assistant, answer = parse(messages=messages).messages
    assert assistant == {"role": "assistant", "content": None, "tool_calls": [call]}
    assert answer == {"role": "tool", "tool_call_id": "c1", "content": "12:00"}


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tools": {}}, "tools", "invalid_type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_parameter"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "invalid_type"),
        ({"tools": [tool("no spaces")]}, "tools[0].function.name", "invalid_value"),
        ({"tools": [tool("a"), tool("a")]}, "tools", "invalid_value"),
        ({"tools": [tool(parameters="x")]}, "tools[0].function.parameters", "invalid_type"),
        ({"tools": [tool(price=1)]}, "tools[0].function.price", "unknown_parameter"),
        ({"tools": [tool(f"t{number}") for number in range(MAX_TOOLS + 1)]}, "tools", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tools": [TIME], "tool_choice": "always"}, "tool_choice", "invalid_value"),
        ({"tools": [WEATHER], "tool_choice": NAMED}, "tool_choice", "invalid_value"),
        ({"tools": [TIME], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type", "unsupported_parameter"),
        ({"tools": [TIME], "response_format": {"type": "json_object"}}, "tools", "invalid_value"),
    ],
)
def test_wrong_tools_are_refused_by_name(fields: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(BodyError) as found:
        parse(**fields)
    assert (found.value.param, found.value.code) == (param, code)


@pytest.mark.parametrize("content", ["", "Let me look."])
def test_text_beside_calls_stays_and_arguments_may_be_left_empty(content: str) -> None:
    call = {"id": "c1", "function": {"name": "time", "arguments": ""}}
    (assistant,) = parse(messages=[{"role": "assistant", "content": content, "tool_calls": [call]}]).messages
    called = {"id": "c1", "type": "function", "function": {"name": "time", "arguments": "{}"}}
    assert assistant == {"role": "assistant", "content": content, "tool_calls": [called]}


@pytest.mark.parametrize(
    ("call", "param"),
    [
        ({"function": {"name": "f", "arguments": "{}"}}, "id"),
        ({"id": "c", "function": {"name": "f", "arguments": {}}}, "function.arguments"),
        ({"id": "c", "function": {"name": "f", "arguments": "{"}}, "function.arguments"),
        ({"id": "c", "function": {"name": "f", "arguments": "[]"}}, "function.arguments"),
        ({"id": "c", "type": "custom", "function": {}}, "type"),
    ],
)
def test_a_wrong_call_in_the_history_is_refused_with_its_place(call: dict[str, Any], param: str) -> None:
    with pytest.raises(BodyError) as found:
        parse(messages=[{"role": "assistant", "tool_calls": [call]}])
    assert found.value.param == f"messages[0].tool_calls[0].{param}"


def test_only_the_right_role_may_have_calls() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    with pytest.raises(BodyError, match='only "assistant" may have it'):
        parse(messages=[{"role": "user", "content": "x", "tool_calls": [call]}])
