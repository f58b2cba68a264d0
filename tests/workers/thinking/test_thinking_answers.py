"""Tests of answers parted into thoughts and content by the marks of the model's template."""

from __future__ import annotations

from typing import Any

import pytest

from engine.outputs import FinishReason
from tests.workers.thinking.builders import answered, answered_with, message_of, reasoning_tokens
from tests.workers.thinking.families import ON, THINKING, thinking_tokenizer

AROUND = {
    "qwen3": ("<think>", "\n", "\n", "</think>\n\n"),
    "qwen3.5": ("", "", "\n", "</think>\n\n"),
    "qwq": ("", "", "\n", "</think>\n\n"),
    "gpt-oss": ("<|channel|>analysis<|message|>", "", "", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    "r1": ("", "", "\n", "</think>\n\n"),
    "deepseek-v3.1": ("", "", "", "</think>"),
    "ministral": ("[THINK]", "", "", "[/THINK]"),
    "seed-oss": ("<seed:think>", "", "", "</seed:think>"),
    "smollm3": ("<think>", "\n", "\n", "</think>\n"),
    "step-3.5": ("", "", "\n", "</think>\n"),
    "glm-4.6": ("\n<think>", "", "", "</think>\n"),
    "glm-4.7": ("", "", "", "</think>"),
    "gemma-4": ("<|channel>thought\n", "", "\n", "<channel|>"),
    "apertus": ("<|inner_prefix|>", "", "", "<|inner_suffix|>"),
}
"""What a model writes around its thoughts: the opening mark, white space of the thoughts, what leads to the answer."""

OUTPUTS = {
    name: f"{begin}{before}It is 12.50.{after}{end}The total is 12.50 EUR."
    for name, (begin, before, after, end) in AROUND.items()
}


@pytest.mark.parametrize("name", THINKING)
def test_an_answer_is_parted_by_the_marks_of_its_model(name: str) -> None:
    answer = answered(name, OUTPUTS[name], **ON.get(name, {}))
    message = message_of(answer)
    assert (message["reasoning_content"], message["content"]) == ("It is 12.50.", "The total is 12.50 EUR.")
    _, before, after, _ = AROUND[name]
    thoughts = thinking_tokenizer(name).encode(f"{before}It is 12.50.{after}", add_special_tokens=False)
    assert reasoning_tokens(answer) == len(thoughts)
    assert answer.usage.reasoning_tokens < answer.usage.completion_tokens
    choice = answer.body["choices"][0]
    assert (choice["finish_reason"], choice["reasoning_finish_reason"]) == ("stop", "stop")


CUT = {name: output[: output.index("12.50.") + 6] for name, output in OUTPUTS.items()}


@pytest.mark.parametrize("name", CUT)
def test_thoughts_cut_by_a_limit_leave_no_content_and_say_so(name: str) -> None:
    answer = answered(name, CUT[name], end=FinishReason.LENGTH, **ON.get(name, {}))
    message, choice = message_of(answer), answer.body["choices"][0]
    assert (message["reasoning_content"], message["content"]) == ("It is 12.50.", None)
    assert (choice["finish_reason"], choice["reasoning_finish_reason"]) == ("length", "length")
    assert answer.is_truncated


@pytest.mark.parametrize("output", ["<|channel>thought", "<|channel>thought\n", "<|channel>thought\nHm."])
def test_thoughts_cut_in_the_header_of_their_mark_do_not_show_it(output: str) -> None:
    answer = answered("gemma-4", output, end=FinishReason.LENGTH, **ON["gemma-4"])
    assert message_of(answer)["reasoning_content"] == ("Hm." if output.endswith("Hm.") else "")
    assert message_of(answer)["content"] is None


def test_thoughts_without_the_header_of_their_mark_are_shown_whole() -> None:
    answer = answered("gemma-4", "<|channel>those are 12.<channel|>12.", **ON["gemma-4"])
    assert message_of(answer)["reasoning_content"] == "those are 12."


def test_a_letter_cut_by_the_budget_is_not_in_the_answer() -> None:
    tokenizer = thinking_tokenizer("ministral")  # whose marks are special tokens, of no text
    thoughts = tokenizer.encode("Hm é", add_special_tokens=False)[:-1]
    begin, end = tokenizer.convert_tokens_to_ids(["[THINK]", "[/THINK]"])
    answer = tokenizer.encode("Yes.", add_special_tokens=False)
    said = [begin, *thoughts, end, *answer, tokenizer.eos_token_id]
    message = message_of(answered_with("ministral", said, thinking_token_budget=len(thoughts)))
    assert message["content"] == "Yes."
    assert message["reasoning_content"].startswith("Hm")


def test_an_answer_cut_behind_its_thoughts_keeps_both() -> None:
    answer = answered("qwen3", "<think>Hm.</think>The", end=FinishReason.LENGTH)
    choice = answer.body["choices"][0]
    assert (message_of(answer)["content"], choice["finish_reason"]) == ("The", "length")
    assert choice["reasoning_finish_reason"] == "stop"


def test_a_budget_that_ended_the_thoughts_is_told() -> None:
    tokenizer = thinking_tokenizer("qwen3")
    budget = len(tokenizer.encode("Hm, is it", add_special_tokens=False))
    answer = answered("qwen3", "<think>Hm, is it</think>Yes.", thinking_token_budget=budget)
    assert answer.body["choices"][0]["reasoning_finish_reason"] == "budget"
    assert reasoning_tokens(answer) == budget


@pytest.mark.parametrize("name", ["qwen3", "ministral", "glm-4.6"])
def test_an_answer_without_thoughts_has_no_field_of_them(name: str) -> None:
    answer = answered(name, "The total.")
    assert message_of(answer) == {"role": "assistant", "content": "The total.", "refusal": None}
    assert "reasoning_finish_reason" not in answer.body["choices"][0]
    assert reasoning_tokens(answer) == 0


def test_an_answer_that_was_told_not_to_think_is_all_content() -> None:
    off: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
    assert message_of(answered("qwen3", "a</think>b", **off))["content"] == "a</think>b"


def test_log_probabilities_are_those_of_the_content() -> None:
    from engine.outputs import TokenDelta, TokenLogprobs
    from tests.workers.thinking.builders import prepare
    from workers.answers import AnswerMaker
    from workers.line_run import LineRun

    tokenizer, prepared = thinking_tokenizer("qwen3"), prepare("qwen3", logprobs=True)
    token_ids = tokenizer.encode("<think>Hm.</think>\n\nYes.", add_special_tokens=False)
    entries = [TokenLogprobs(logprob=-1.0, rank=1, top_token_ids=[], top_logprobs=[]) for _ in token_ids]
    run = LineRun(prepared, tokenizer, batch_id="batch_1", on_done=lambda _: None, on_stopped=lambda *_: None)
    delta = TokenDelta(request_id=0, token_ids=token_ids, logprobs=entries, finish_reason=FinishReason.LENGTH)
    run.prompt_runs[0].receive(delta)
    body = AnswerMaker(tokenizer, model="demo").make(run, response_id="chatcmpl-1", created=7).body
    shown = body["choices"][0]["logprobs"]["content"]
    assert "".join(one["token"] for one in shown) == "Yes." == body["choices"][0]["message"]["content"]


def test_tool_calls_are_read_behind_the_thoughts() -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    answer = answered("qwen3", f"<think>\n<tool_call> or not?\n</think>\n\n{call}", tools=tools)
    message = message_of(answer)
    assert [one["function"]["name"] for one in message["tool_calls"]] == ["weather"]
    assert (message["content"], message["reasoning_content"]) == (None, "<tool_call> or not?")


def test_a_stop_string_ends_the_content_and_counts_in_the_thoughts_too() -> None:
    tokenizer = thinking_tokenizer("qwen3")
    assert tokenizer is not None
    behind = message_of(answered("qwen3", "<think>Hm.</think>Yes; no.", stop=";"))
    assert (behind["reasoning_content"], behind["content"]) == ("Hm.", "Yes")
    inside = message_of(answered("qwen3", "<think>Hm; no.</think>Yes.", stop=";"))
    assert (inside["reasoning_content"], inside["content"]) == ("Hm", None)
