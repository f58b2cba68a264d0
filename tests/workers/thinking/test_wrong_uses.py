"""Tests of wrong uses of parameters of templates and thoughts: each is an error that names the parameter."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.lines.bodies import CHAT_ENDPOINT, COMPLETION_ENDPOINT
from jobs.lines.body_checks import BodyError
from tests.workers.thinking.builders import prepare

USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "12."}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
LAST = {"messages": [USER, ANSWER]}
PROMPT = {"prompt": "Hi"}

# A template (`plain` has no thoughts), the parameters of a line, and the parameter and code of its error.
WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("qwen3", {"chat_template_kwargs": "off"}, "chat_template_kwargs", "invalid_type"),
    ("qwen3", {"chat_template_kwargs": ["enable_thinking"]}, "chat_template_kwargs", "invalid_type"),
    ("qwen3", {"chat_template_kwargs": {"thinking": False}}, "chat_template_kwargs.thinking", "unsupported_parameter"),
    ("qwen3", {"chat_template_kwargs": {"content": "x"}}, "chat_template_kwargs.content", "unsupported_parameter"),
    ("qwen3", {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", "invalid_value"),
    ("qwen3", {"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools", "invalid_value"),
    (
        "qwen3",
        {"chat_template_kwargs": {"add_generation_prompt": False}},
        "chat_template_kwargs.add_generation_prompt",
        "invalid_value",
    ),
    (
        "r1",
        {"chat_template_kwargs": {"enable_thinking": False}},
        "chat_template_kwargs.enable_thinking",
        "unsupported_parameter",
    ),
    ("r1", {"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs.bos_token", "unsupported_parameter"),
    (
        "plain",
        {"chat_template_kwargs": {"enable_thinking": True}},
        "chat_template_kwargs.enable_thinking",
        "unsupported_parameter",
    ),
    ("qwen3", {"reasoning_effort": "low"}, "reasoning_effort", "unsupported_parameter"),
    ("plain", {"reasoning_effort": "high"}, "reasoning_effort", "unsupported_parameter"),
    ("gpt-oss", {"reasoning_effort": "much"}, "reasoning_effort", "invalid_value"),
    ("gpt-oss", {"reasoning_effort": 2}, "reasoning_effort", "invalid_value"),
    (
        "gpt-oss",
        {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
        "reasoning_effort",
        "invalid_value",
    ),
    ("qwen3", {"thinking_token_budget": -1}, "thinking_token_budget", "invalid_value"),
    ("qwen3", {"thinking_token_budget": 1.5}, "thinking_token_budget", "invalid_type"),
    ("qwen3", {"thinking_token_budget": True}, "thinking_token_budget", "invalid_type"),
    ("plain", {"thinking_token_budget": 9}, "thinking_token_budget", "unsupported_parameter"),
    ("qwen3", {"continue_final_message": "yes"}, "continue_final_message", "invalid_type"),
    ("qwen3", {"continue_final_message": True}, "continue_final_message", "invalid_value"),
    (
        "qwen3",
        {**LAST, "continue_final_message": True, "add_generation_prompt": True},
        "continue_final_message",
        "invalid_value",
    ),
    (
        "qwen3",
        {"messages": [USER, {**ANSWER, "content": ""}], "continue_final_message": True},
        "continue_final_message",
        "invalid_value",
    ),
    (
        "qwen3",
        {"messages": [USER, {**ANSWER, "tool_calls": [CALL]}], "continue_final_message": True},
        "continue_final_message",
        "invalid_value",
    ),
    ("qwen3", {"add_generation_prompt": False}, "add_generation_prompt", "unsupported_parameter"),
    ("qwen3", {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "invalid_value"),
    ("qwen3", {"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "invalid_value"),
    ("qwen3", {"truncate_prompt_tokens": "all"}, "truncate_prompt_tokens", "invalid_type"),
    ("plain", {**PROMPT, "truncate_prompt_tokens": 4, "echo": True}, "truncate_prompt_tokens", "invalid_value"),
    ("plain", {**PROMPT, "reasoning_effort": "low"}, "reasoning_effort", "unknown_parameter"),
    ("plain", {**PROMPT, "thinking_token_budget": 5}, "thinking_token_budget", "unknown_parameter"),
    ("plain", {**PROMPT, "chat_template_kwargs": {}}, "chat_template_kwargs", "unknown_parameter"),
    ("plain", {**PROMPT, "continue_final_message": True}, "continue_final_message", "unknown_parameter"),
    ("qwen3", {"messages": [{**USER, "reasoning_content": "Hm."}]}, "messages[0].reasoning_content", "invalid_value"),
    ("qwen3", {"messages": [{**USER, "reasoning": "Hm."}]}, "messages[0].reasoning", "invalid_value"),
    ("qwen3", {"messages": [USER, {**ANSWER, "reasoning": ["Hm."]}]}, "messages[1].reasoning", "invalid_type"),
    (
        "qwen3",
        {"messages": [USER, {**ANSWER, "reasoning": "a", "reasoning_content": "b"}]},
        "messages[1].reasoning",
        "invalid_value",
    ),
    ("qwen3", {"messages": [USER, {**ANSWER, "thinking": "Hm."}]}, "messages[1].thinking", "unknown_parameter"),
    ("qwen3", {"enable_thinking": False}, "enable_thinking", "unknown_parameter"),
    ("qwen3", {"include_reasoning": False}, "include_reasoning", "unknown_parameter"),
    ("qwen3.5", {"chat_template_kwargs": {"content": "x"}}, "chat_template_kwargs.content", "unsupported_parameter"),
    (
        "seed-oss",
        {"chat_template_kwargs": {"enable_thinking": False}},
        "chat_template_kwargs.enable_thinking",
        "unsupported_parameter",
    ),
    ("granite", {"thinking_token_budget": 5}, "thinking_token_budget", "unsupported_parameter"),
]


@pytest.mark.parametrize(("name", "body", "param", "code"), WRONG)
def test_a_wrong_use_is_refused_and_names_its_parameter(
    name: str, body: dict[str, Any], param: str, code: str, tokenizer: Any
) -> None:
    endpoint = COMPLETION_ENDPOINT if "prompt" in body else CHAT_ENDPOINT
    with pytest.raises(BodyError) as caught:
        prepare(tokenizer if name == "plain" else name, endpoint=endpoint, **body)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert param.rpartition(".")[2] in caught.value.message
