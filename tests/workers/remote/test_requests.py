"""Tests of what a line needs, and of the request that each dialect makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.lines.bodies import chat_request, completion_request
from jobs.lines.body_checks import BodyError
from jobs.lines.needs import NOTHING, Need, needs_of
from workers.remote.dialects import DIALECTS, LLAMA_CPP_PYTHON, LLAMA_SERVER, OPENAI, OTHER, VLLM, Dialect
from workers.remote.requests import body_of, require_needs

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}


def chat(**body: Any) -> Any:
    return chat_request({"model": "m", "messages": [{"role": "developer", "content": "Hi"}]} | body)


def completion(**body: Any) -> Any:
    return completion_request({"model": "m", "prompt": "Hi"} | body)


def sent(request: Any, dialect: Dialect) -> dict[str, Any]:
    return body_of(request, dialect, model="theirs", seed=None, max_tokens=None)


@pytest.mark.parametrize(
    ("body", "needs"),
    [
        ({}, NOTHING),
        ({"temperature": 0, "top_p": 0.5, "max_tokens": 3, "user": "u"}, NOTHING),
        ({"top_k": -1, "n": 1, "logit_bias": {}, "stop": []}, NOTHING),
        ({"n": 2, "stop": "x", "seed": 0}, Need.N | Need.STOP | Need.SEED),
        ({"logprobs": True}, Need.LOGPROBS),
        ({"top_k": 3, "min_p": 0.1, "repetition_penalty": 1.1}, Need.TOP_K | Need.MIN_P | Need.REPETITION_PENALTY),
        ({"response_format": FORMAT}, Need.JSON),
        ({"response_format": {"type": "json_object"}}, Need.JSON_OBJECT),
        ({"guided_regex": "a+"}, Need.REGEX),
        ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, Need.JSON | Need.COMPACT_JSON),
        ({"tools": [TOOL]}, Need.TOOLS),
        ({"tools": [TOOL], "tool_choice": "none"}, NOTHING),
        ({"skip_special_tokens": False}, Need.SKIP_SPECIAL_TOKENS),
    ],
)
def test_a_line_needs_what_it_asks_for_and_nothing_that_has_no_effect(body: dict[str, Any], needs: Need) -> None:
    assert needs_of(chat(**body)) == needs


def test_a_completion_needs_its_own() -> None:
    assert needs_of(completion(prompt=[[1, 2], [3]], echo=True)) == Need.TOKEN_PROMPTS | Need.MANY_PROMPTS | Need.ECHO
    assert needs_of(completion(guided_choice=["a"])) == Need.CHOICE | Need.STRUCTURED_COMPLETIONS


def test_what_an_engine_does_not_offer_is_refused_by_name() -> None:
    request = chat(n=2)
    require_needs(request, VLLM.meets, engine="vllm")
    with pytest.raises(BodyError) as error:
        require_needs(request, LLAMA_SERVER.meets, engine="llama.cpp")
    assert error.value.param == "n"


def test_every_parameter_that_a_kind_offers_can_be_written() -> None:
    plain = {"n", "seed", "stop", "logprobs", "presence_penalty", "frequency_penalty", "logit_bias"}
    for dialect in DIALECTS.values():
        offered = {name for name in dialect.meets.names() if name in VLLM.names}
        assert offered <= {*dialect.names, *plain}, dialect.kind
        assert dialect.has_structured_outputs or not dialect.meets & (Need.REGEX | Need.CHOICE | Need.COMPACT_JSON)


def test_parameters_go_under_the_server_s_names() -> None:
    body = sent(chat(top_k=3, repetition_penalty=1.5, ignore_eos=True), LLAMA_SERVER)
    assert (body["top_k"], body["repeat_penalty"], body["ignore_eos"]) == (3, 1.5, True)
    assert "repetition_penalty" not in body


def test_only_what_was_asked_goes_to_a_vendor() -> None:
    assert sent(chat(metadata={"a": "b"}, store=False), OTHER) == {
        "model": "theirs",
        "stream": False,
        "messages": [{"role": "system", "content": "Hi"}],
        "temperature": 1.0,
        "top_p": 1.0,
    }


def test_a_limit_has_the_name_that_a_server_knows() -> None:
    asked: dict[str, Any] = {"model": "m", "seed": 5, "max_tokens": 7}
    assert body_of(chat(), OPENAI, **asked)["max_completion_tokens"] == 7
    assert body_of(chat(), VLLM, **asked)["max_tokens"] == 7
    assert body_of(completion(), OPENAI, **asked)["max_tokens"] == 7
    assert body_of(chat(), OPENAI, **asked)["seed"] == 5


def test_a_schema_goes_where_the_server_reads_it() -> None:
    as_vllm = sent(chat(response_format=FORMAT), VLLM)["response_format"]
    assert as_vllm["json_schema"]["schema"] == SCHEMA
    as_llama = sent(chat(response_format=FORMAT), LLAMA_CPP_PYTHON)["response_format"]
    assert as_llama == {"type": "json_object", "schema": SCHEMA}
    assert sent(chat(guided_choice=["a", "b"]), VLLM)["structured_outputs"] == {"choice": ["a", "b"]}
    compact = chat(structured_outputs={"json": SCHEMA, "disable_any_whitespace": True})
    with pytest.raises(BodyError, match="compact_json"):
        require_needs(compact, VLLM.meets, engine="vllm")
    with pytest.raises(BodyError, match="guided_json"):
        sent(chat(guided_json="{"), VLLM)


def test_what_concerns_the_template_is_passed_on_or_refused_by_name() -> None:
    asked = chat(chat_template_kwargs={"enable_thinking": False}, thinking_token_budget=9)
    body = sent(asked, VLLM)
    assert (body["chat_template_kwargs"], body["thinking_token_budget"]) == ({"enable_thinking": False}, 9)
    assert sent(chat(reasoning_effort="low"), VLLM)["chat_template_kwargs"] == {"reasoning_effort": "low"}
    assert sent(chat(reasoning_effort="low"), OPENAI)["reasoning_effort"] == "low"
    continued = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "So"}]
    body = sent(chat(messages=continued, continue_final_message=True), VLLM)
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    for more in ({"chat_template_kwargs": {"a": 1}}, {"thinking_token_budget": 0}, {"reasoning_effort": "low"}):
        with pytest.raises(BodyError) as error:
            sent(chat(**more), LLAMA_CPP_PYTHON)
        assert (error.value.param, error.value.code) == (next(iter(more)), "unsupported_parameter")
    with pytest.raises(BodyError, match="truncate_prompt_tokens"):
        require_needs(completion(truncate_prompt_tokens=5), VLLM.meets, engine="vllm")


def test_tools_and_choices_are_passed_on() -> None:
    named = {"type": "function", "function": {"name": "f"}}
    assert sent(chat(tools=[TOOL]), VLLM)["tools"] == [TOOL]
    assert sent(chat(tools=[TOOL], tool_choice="required"), VLLM)["tool_choice"] == "required"
    assert sent(chat(tools=[TOOL], tool_choice=named), VLLM)["tool_choice"] == named
    strict = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
    for choice in ("required", named):
        assert sent(chat(tools=[TOOL], tool_choice=choice), VLLM)["tools"] == [strict]
        assert sent(chat(tools=[TOOL], tool_choice=choice), OPENAI)["tools"] == [TOOL]
    assert sent(chat(tools=[TOOL], parallel_tool_calls=False), VLLM)["parallel_tool_calls"] is False


def test_one_prompt_goes_as_itself_and_several_as_a_list() -> None:
    assert sent(completion(prompt=["a"]), VLLM)["prompt"] == "a"
    assert sent(completion(prompt=["a", "b"]), VLLM)["prompt"] == ["a", "b"]
    assert sent(completion(prompt=[1, 2]), VLLM)["prompt"] == (1, 2)


def test_what_llama_server_reads_in_another_way_is_sent_in_its_own() -> None:
    other = {"type": "function", "function": {"name": "g", "parameters": SCHEMA}}
    body = sent(chat(tools=[TOOL, other], tool_choice={"type": "function", "function": {"name": "g"}}), LLAMA_SERVER)
    assert (body["tools"], body["tool_choice"]) == ([other], "required")
    assert sent(chat(logprobs=True), LLAMA_SERVER)["top_logprobs"] == 1
    assert sent(chat(logprobs=True), VLLM)["top_logprobs"] == 0
    assert sent(completion(prompt="a", logprobs=0), LLAMA_SERVER)["logprobs"] == 1
    assert sent(completion(prompt="a", logprobs=3), LLAMA_SERVER)["logprobs"] == 3
