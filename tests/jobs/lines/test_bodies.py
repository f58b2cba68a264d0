"""Bodies: every parameter of the two endpoints is supported, harmless, or refused by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import completion_create_params as text_params
from openai.types.chat import completion_create_params as chat_params

from jobs.lines.bodies import (
    CHAT_ENDPOINT,
    COMPLETION_ENDPOINT,
    COMPLETION_MAX_TOKENS,
    ChatRequest,
    CompletionRequest,
    parse_body,
)
from jobs.lines.body_checks import BodyError
from jobs.lines.sampling import Sampling, documented_rows
from tests.jobs.lines.bodies import MESSAGES, chat, complete, refusal

DOCS = Path(__file__).resolve().parents[3] / "docs" / "api.md"


def test_a_plain_chat_body_has_the_defaults_of_the_api() -> None:
    request = chat()
    assert request.messages == ({"role": "user", "content": "Hello"},)
    assert request.sampling == Sampling(max_tokens=None)


def test_every_sampling_parameter_is_documented_as_it_is_declared() -> None:
    assert "\n".join(documented_rows()) in DOCS.read_text(encoding="utf-8")


def test_every_sampling_field_arrives_under_its_name() -> None:
    fields: dict[str, Any] = {
        "n": 2,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -2,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": -100, "17": 2.5},
        "allowed_token_ids": [3, 5],
        "bad_words": ["no", " never"],
        "prompt_logprobs": 2,
        "seed": -4,
        "stop": "x",
        "stop_token_ids": [1, 2],
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "max_tokens": 9,
        "min_tokens": 3,
        "skip_special_tokens": False,
    }
    changed = {"stop": ("x",), "stop_token_ids": (1, 2), "temperature": 0.0, "frequency_penalty": -2.0}
    tuples = {"logit_bias": ((5, -100.0), (17, 2.5)), "allowed_token_ids": (3, 5), "bad_words": ("no", " never")}
    expected = Sampling(**fields | changed | tuples)
    assert chat(**fields).sampling == expected
    assert complete(**fields).sampling == expected


def test_either_name_of_the_limit_is_accepted_and_a_contradiction_is_not() -> None:
    assert chat(max_tokens=5).sampling.max_tokens == 5
    assert chat(max_completion_tokens=5).sampling.max_tokens == 5
    assert chat(max_completion_tokens=5, max_tokens=5).sampling.max_tokens == 5
    assert refusal(max_completion_tokens=5, max_tokens=6).param == "max_completion_tokens"


def test_a_completion_without_a_limit_has_the_documented_one() -> None:
    assert complete().sampling.max_tokens == COMPLETION_MAX_TOKENS
    assert complete(max_tokens=None).sampling.max_tokens == COMPLETION_MAX_TOKENS


def test_chat_logprobs_need_their_switch() -> None:
    assert chat(logprobs=True).sampling.logprobs == 0
    assert chat(logprobs=True, top_logprobs=5).sampling.logprobs == 5
    assert chat(logprobs=False, top_logprobs=0).sampling.logprobs is None
    assert refusal(top_logprobs=5).param == "top_logprobs"
    assert complete(logprobs=3).sampling.logprobs == 3


def test_text_parts_and_the_developer_role_become_plain_messages() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = chat(messages=[{"role": "developer", "content": parts}, {"role": "user", "content": "c", "name": "Ann"}])
    assert request.messages == (
        {"role": "system", "content": "a\nb"},
        {"role": "user", "content": "c", "name": "Ann"},
    )


def test_an_answer_pasted_back_with_its_empty_fields_is_accepted() -> None:
    answer: dict[str, Any] = {"role": "assistant", "content": "x", "refusal": None, "tool_calls": None}
    answer["annotations"] = []
    assert chat(messages=[*MESSAGES, answer]).messages[1] == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
        (["a", [1]], ("a", (1,))),
    ],
)
def test_prompts_come_in_every_form_of_the_api(prompt: object, expected: object) -> None:
    assert complete(prompt=prompt).prompts == expected


@pytest.mark.parametrize(
    ("prompt", "param"),
    [([], "prompt"), (3, "prompt"), ({}, "prompt"), ([1, "a"], "prompt"), ([1, -1], "prompt"), ([[]], "prompt[0]"),
     (["a", 1.5], "prompt[1]"), ([True], "prompt[0]"), (["x"] * 2049, "prompt")],
)  # fmt: skip
def test_a_wrong_prompt_is_refused_with_its_place(prompt: object, param: str) -> None:
    assert refusal(COMPLETION_ENDPOINT, prompt=prompt).param == param


@pytest.mark.parametrize(
    ("messages", "param", "code"),
    [
        ([], "messages", "invalid_value"),
        ("hi", "messages", "invalid_type"),
        (["hi"], "messages[0]", "invalid_type"),
        ([{"content": "x"}], "messages[0].role", "invalid_value"),
        ([{"role": "robot", "content": "x"}], "messages[0].role", "invalid_value"),
        ([{"role": [], "content": "x"}], "messages[0].role", "invalid_value"),
        ([{"role": "function", "content": "x"}], "messages[0].role", "unsupported_parameter"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id", "invalid_type"),
        ([{"role": "user", "content": "x", "tool_call_id": "c"}], "messages[0].tool_call_id", "invalid_value"),
        ([{"role": "user"}], "messages[0].content", "invalid_type"),
        ([{"role": "user", "content": []}], "messages[0].content", "invalid_value"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]", "invalid_type"),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            "messages[0].content[0].type",
            "unsupported_parameter",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text", "invalid_type"),
        ([{"role": "user", "content": "x", "mood": "good"}], "messages[0].mood", "unknown_parameter"),
        (
            [{"role": "assistant", "content": "x", "tool_calls": [{}]}],
            "messages[0].tool_calls[0].function",
            "invalid_type",
        ),
    ],
)
def test_a_wrong_message_is_refused_with_its_place(messages: object, param: str, code: str) -> None:
    found = refusal(messages=messages)
    assert (found.param, found.code) == (param, code)


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": False},
        {"store": False},
        {"user": "u"},
        {"metadata": {"a": "b"}},
        {"response_format": {"type": "text"}},
        {"frequency_penalty": 0},
        {"presence_penalty": 0.0},
        {"repetition_penalty": 1},
        {"logit_bias": {}},
        {"tools": []},
        {"tool_choice": "none"},
        {"modalities": ["text"]},
        {"service_tier": "auto"},
        {"parallel_tool_calls": True},
        {"prompt_cache_key": "k"},
        {"safety_identifier": "s"},
        {"stop": []},
        {"stop_token_ids": []},
    ],
)
def test_what_has_no_effect_is_accepted_and_changes_nothing(fields: dict[str, Any]) -> None:
    assert chat(**fields) == chat()


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": True}, {"store": True},
        {"modalities": ["audio"]}, {"service_tier": "flex"},
        {"stream_options": {}}, {"web_search_options": {}}, {"audio": {}}, {"prediction": {}}, {"functions": [{}]},
        {"store": 0},
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(fields: dict[str, Any]) -> None:
    found = refusal(**fields)
    (name,) = fields
    assert (found.param, found.code, found.status) == (name, "unsupported_parameter", 400)
    assert name in found.message


@pytest.mark.parametrize("fields", [{"suffix": "x"}, {"best_of": 2}, {"best_of": 3, "n": 2}])
def test_completion_parameters_that_are_not_supported_are_refused(fields: dict[str, Any]) -> None:
    found = refusal(COMPLETION_ENDPOINT, **fields)
    assert found.param in fields
    assert found.code == "unsupported_parameter"


@pytest.mark.parametrize(("bias", "code"), [("much", "invalid_type"), (-101, "invalid_value"), (True, "invalid_type")])
def test_a_wrong_bias_is_refused_with_its_token(bias: object, code: str) -> None:
    found = refusal(logit_bias={"4": 1, "5": bias})
    assert (found.param, found.code) == ("logit_bias.5", code)
    assert "a number from -100 to 100" in found.message


def test_a_completion_may_echo_its_prompt_and_generate_nothing() -> None:
    assert complete(echo=True).echo
    assert not complete().echo
    assert complete(echo=True, max_tokens=0, logprobs=2).sampling.max_tokens == 0
    found = refusal(COMPLETION_ENDPOINT, max_tokens=0)
    assert (found.param, found.code) == ("max_tokens", "invalid_value")
    assert refusal(echo=True).code == "unknown_parameter", "a chat has no echo"


def test_harmless_completion_parameters_are_accepted() -> None:
    assert complete(echo=False, suffix="", best_of=1) == complete()
    assert complete(best_of=2, n=2) == complete(n=2)


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"temperature": 2.5}, "invalid_value", "temperature is 2.5; it must be a number from 0 to 2"),
        ({"temperature": "hot"}, "invalid_type", 'temperature is "hot"'),
        ({"temperature": True}, "invalid_type", "temperature is true"),
        ({"top_p": 0}, "invalid_value", "set temperature to 0"),
        ({"n": 0}, "invalid_value", "from 1 to 128"),
        ({"n": 1.0}, "invalid_type", "a whole number"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens is 0"),
        ({"max_completion_tokens": -1}, "invalid_value", "is -1"),
        ({"seed": "7"}, "invalid_type", "seed"),
        ({"stop": ["a", ""]}, "invalid_value", "non-empty"),
        ({"stop": [1]}, "invalid_type", "strings"),
        ({"stop_token_ids": [-1]}, "invalid_value", "token ids"),
        ({"frequency_penalty": 2.5}, "invalid_value", "frequency_penalty is 2.5; it must be a number from -2 to 2"),
        ({"presence_penalty": False}, "invalid_type", "presence_penalty is false"),
        ({"repetition_penalty": 0}, "invalid_value", "from 0.001 to 1000"),
        ({"logit_bias": [5]}, "invalid_type", "an object from token ids to numbers"),
        ({"logit_bias": {"hello": 1}}, "invalid_value", "token ids"),
        ({"logit_bias": {"\u0665": 1}}, "invalid_value", "token ids"),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "invalid_value", "at most 1024"),
        ({"allowed_token_ids": []}, "invalid_value", "at least one token id"),
        ({"allowed_token_ids": ["a"]}, "invalid_value", "token ids"),
        ({"bad_words": "no"}, "invalid_type", "a list of strings"),
        ({"bad_words": ["no", " "]}, "invalid_value", "not blank"),
        ({"prompt_logprobs": -1}, "invalid_value", "from 0 to 20"),
        ({"logprobs": 3}, "invalid_type", "true or false"),
        ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "from 0 to 20"),
        ({"min_tokens": 5, "max_tokens": 4}, "invalid_value", "must not be above"),
        ({"user": 3}, "invalid_type", "a string"),
        ({"metadata": "x"}, "invalid_type", "an object"),
        ({"flavour": 1}, "unknown_parameter", "flavour"),
        ({"echo": False}, "unknown_parameter", "echo"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(fields: dict[str, Any], code: str, words: str) -> None:
    found = refusal(**fields)
    assert found.code == code
    assert words in found.message
    assert found.param in fields


@pytest.mark.parametrize(("endpoint", "name"), [(CHAT_ENDPOINT, "messages"), (COMPLETION_ENDPOINT, "prompt")])
def test_the_one_required_field_is_named(endpoint: str, name: str) -> None:
    with pytest.raises(BodyError) as caught:
        parse_body(endpoint, {"model": "m", name: None})
    assert (caught.value.param, caught.value.code) == (name, "missing_required_parameter")


@pytest.mark.parametrize(
    ("endpoint", "params"),
    [
        (CHAT_ENDPOINT, chat_params.CompletionCreateParamsNonStreaming),
        (COMPLETION_ENDPOINT, text_params.CompletionCreateParamsNonStreaming),
    ],
)
def test_every_parameter_of_the_official_client_is_known(endpoint: str, params: type) -> None:
    start = {"messages": MESSAGES} if endpoint == CHAT_ENDPOINT else {"prompt": "x"}
    for name in get_type_hints(params).keys() - start.keys():
        parse_body(endpoint, {"model": "m", name: None} | start)  # null: not given


keys = st.sampled_from(["role", "content", "type", "text"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(
    [
        "messages",
        "prompt",
        "n",
        "stop",
        "seed",
        "top_p",
        "logit_bias",
        "bad_words",
        "response_format",
        "tools",
        "logprobs",
        "structured_outputs",
        "guided_choice",
    ]
)


CODES = {"invalid_value", "invalid_type", "unsupported_parameter", "unknown_parameter", "missing_required_parameter"}


def outcome(endpoint: str, body: dict[str, Any]) -> ChatRequest | CompletionRequest | BodyError:
    try:
        return parse_body(endpoint, body)
    except BodyError as found:
        return found


@given(st.sampled_from([CHAT_ENDPOINT, COMPLETION_ENDPOINT]), st.dictionaries(names, values, max_size=4))
def test_any_body_is_a_request_or_a_body_error(endpoint: str, body: dict[str, Any]) -> None:
    found = outcome(endpoint, body)
    if isinstance(found, BodyError):
        assert found.message
        assert found.code in CODES
    else:
        hash(found.sampling)
