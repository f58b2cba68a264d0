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

WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("qwen3", {"chat_template_kwargs": "off"}, "chat_template_kwargs"),
    ("qwen3", {"chat_template_kwargs": ["enable_thinking"]}, "chat_template_kwargs"),
    ("qwen3", {"chat_template_kwargs": {"thinking": False}}, "chat_template_kwargs.thinking"),
    ("qwen3", {"chat_template_kwargs": {"content": "x"}}, "chat_template_kwargs.content"),
    ("qwen3", {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ("qwen3", {"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
    ("qwen3", {"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs.add_generation_prompt"),
    ("r1", {"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs.enable_thinking"),
    ("r1", {"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs.bos_token"),
    ("plain", {"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs.enable_thinking"),
    ("qwen3", {"reasoning_effort": "low"}, "reasoning_effort"),
    ("plain", {"reasoning_effort": "high"}, "reasoning_effort"),
    ("gpt-oss", {"reasoning_effort": "much"}, "reasoning_effort"),
    ("gpt-oss", {"reasoning_effort": 2}, "reasoning_effort"),
    ("gpt-oss", {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}, "reasoning_effort"),
    ("qwen3", {"thinking_token_budget": -1}, "thinking_token_budget"),
    ("qwen3", {"thinking_token_budget": 1.5}, "thinking_token_budget"),
    ("qwen3", {"thinking_token_budget": True}, "thinking_token_budget"),
    ("plain", {"thinking_token_budget": 9}, "thinking_token_budget"),
    ("qwen3", {"continue_final_message": "yes"}, "continue_final_message"),
    ("qwen3", {"continue_final_message": True}, "continue_final_message"),
    ("qwen3", {**LAST, "continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    (
        "qwen3",
        {"messages": [USER, {**ANSWER, "content": ""}], "continue_final_message": True},
        "continue_final_message",
    ),
    (
        "qwen3",
        {"messages": [USER, {**ANSWER, "tool_calls": [CALL]}], "continue_final_message": True},
        "continue_final_message",
    ),
    ("qwen3", {"add_generation_prompt": False}, "add_generation_prompt"),
    ("qwen3", {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ("qwen3", {"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ("qwen3", {"truncate_prompt_tokens": "all"}, "truncate_prompt_tokens"),
    ("plain", {**PROMPT, "truncate_prompt_tokens": 4, "echo": True}, "truncate_prompt_tokens"),
    ("plain", {**PROMPT, "reasoning_effort": "low"}, "reasoning_effort"),
    ("plain", {**PROMPT, "thinking_token_budget": 5}, "thinking_token_budget"),
    ("plain", {**PROMPT, "chat_template_kwargs": {}}, "chat_template_kwargs"),
    ("plain", {**PROMPT, "continue_final_message": True}, "continue_final_message"),
    ("qwen3", {"messages": [{**USER, "reasoning_content": "Hm."}]}, "messages[0].reasoning_content"),
    ("qwen3", {"messages": [{**USER, "reasoning": "Hm."}]}, "messages[0].reasoning"),
    ("qwen3", {"messages": [USER, {**ANSWER, "reasoning": ["Hm."]}]}, "messages[1].reasoning"),
    ("qwen3", {"messages": [USER, {**ANSWER, "reasoning": "a", "reasoning_content": "b"}]}, "messages[1].reasoning"),
    ("qwen3", {"messages": [USER, {**ANSWER, "thinking": "Hm."}]}, "messages[1].thinking"),
    ("qwen3", {"enable_thinking": False}, "enable_thinking"),
    ("qwen3", {"include_reasoning": False}, "include_reasoning"),
]


@pytest.mark.parametrize(("name", "body", "param"), WRONG)
def test_a_wrong_use_is_refused_and_names_its_parameter(
    name: str, body: dict[str, Any], param: str, tokenizer: Any
) -> None:
    endpoint = COMPLETION_ENDPOINT if "prompt" in body else CHAT_ENDPOINT
    with pytest.raises(BodyError) as caught:
        prepare(tokenizer if name == "plain" else name, endpoint=endpoint, **body)
    assert caught.value.param == param
    assert param.rpartition(".")[2] in caught.value.message
