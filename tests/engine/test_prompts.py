"""Tests of prompts, conversations and parameters from users: an invalid one is an error of only its request."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from engine import LLM, InvalidRequestError, SamplingParams
from tests.engine.builders import greedy
from tests.engine.tiny_models import TinyModel
from tests.engine.worded import SETTINGS

CHAT = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def llm(worded: TinyModel) -> LLM:
    return LLM(worded.path, **SETTINGS)


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        ([-1], "-1 at index 0; token ids are whole numbers from 0 to 255"),
        ([5, 2**40], "1099511627776 at index 1; token ids are"),
        ([5, 1.5], "1.5 at index 1; token ids are"),
        ([5, float("nan")], "nan at index 1; token ids are"),
        ([True], "True at index 0; token ids are"),
        ([5, None], "None at index 1; token ids are"),
        ([5, "6"], "'6' at index 1; token ids are"),
        ([[5], 6], r"\[5\] at index 0; token ids are"),
        (np.array([[5, 6]]), r"\[5, 6\] at index 0; token ids are"),
        (torch.tensor([5.5]), "5.5 at index 0; token ids are"),
        (None, "The prompt is None; give text, token ids"),
        (b"Hello", "The prompt is b'Hello'; give text, token ids"),
        (bytearray(b"Hello"), "The prompt is bytearray.*; give text, token ids"),
        (..., "The prompt is Ellipsis; give text, token ids"),
        (torch.tensor(5), "The prompt is 5; give text, token ids"),
        ({"text": "Hello"}, "a dict with 'text'; this engine reads only prompt and prompt_token_ids"),
        ({}, "a dict without prompt and prompt_token_ids; give one of them"),
        ({"prompt": None}, "a dict without prompt and prompt_token_ids; give one of them"),
        ({"prompt": {"prompt": "Hello"}}, "The prompt is {'prompt': 'Hello'}; give text, token ids"),
        ({"prompt": "Hello", "multi_modal_data": {"image": 1}}, "a dict with 'multi_modal_data'; this engine reads"),
        ("a\ud800b", r"'\\ud800' at character 1, half of a surrogate pair.* replace it"),
        ("a" * 100_000, "The prompt has 100000 tokens; this model's context of 256"),
        ("", "no tokens; give at least one"),
        ([], "no tokens; give at least one"),
    ],
)
def test_a_prompt_that_is_none_is_the_error_of_that_request_alone(
    *, prompt: Any, named: str, llm: LLM, worded: TinyModel
) -> None:
    good, params = worded.prompts[0], SamplingParams(temperature=0.0, max_tokens=worded.max_tokens[0], n=1)
    first, bad, last = llm.generate([good, prompt, good], params)
    assert first.outputs[0].token_ids == last.outputs[0].token_ids == worded.expected[0]
    (ended,) = bad.outputs
    assert (ended.finish_reason, ended.token_ids, ended.text) == ("error", [], "")
    assert re.search(named, str(ended.error)), ended.error


def test_a_single_prompt_that_is_none_is_one_request_with_an_error(llm: LLM) -> None:
    prompts: list[Any] = [None, [-1], [True], "\udfff", 7, {}, bytearray(b"a")]
    for prompt in prompts:
        (result,) = llm.generate(prompt, SamplingParams(n=2))
        assert [output.finish_reason for output in result.outputs] == ["error", "error"], prompt


@pytest.mark.parametrize("make", [np.array, torch.tensor, tuple, iter, lambda ids: list(map(torch.tensor, ids))])
def test_token_ids_may_be_given_in_any_collection(make: Any, llm: LLM, worded: TinyModel) -> None:
    alone: Any = make(worded.prompts[0])
    one_of_several: Any = [make(worded.prompts[0])]
    for prompts in (alone, one_of_several):
        (result,) = llm.generate(prompts, greedy(worded.max_tokens[0], ignore_eos=False))
        assert result.outputs[0].token_ids == worded.expected[0]
        assert {type(token_id) for token_id in result.prompt_token_ids} == {int}


@pytest.mark.parametrize("make", [np.array, torch.tensor, iter])
def test_several_prompts_may_come_in_any_collection(make: Any, llm: LLM) -> None:
    prompts = [[5, 6, 7], [6, 7, 8]]
    given: Any = make(prompts)
    assert [result.prompt_token_ids for result in llm.generate(given, greedy(1))] == prompts


def test_of_a_dict_the_prompt_that_is_given_is_read(llm: LLM) -> None:
    dicts: list[Any] = [
        {"prompt": "Hi", "prompt_token_ids": None, "multi_modal_data": None},
        {"prompt": "another", "prompt_token_ids": [5, 6]},
    ]
    text, ids = llm.generate(dicts, greedy(1))
    assert (text.prompt, len(text.prompt_token_ids)) == ("Hi", 2)
    assert (ids.prompt, ids.prompt_token_ids) == (None, [5, 6])


@pytest.mark.parametrize("given", [[], iter(()), np.zeros((0, 4), np.int64)])
def test_no_prompts_have_no_outputs(given: Any, llm: LLM) -> None:
    assert llm.generate(given) == []
    assert llm.chat(given) == []


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ("greedy", "sampling_params has 'greedy'; give SamplingParams"),
        ({"temperature": 0}, "sampling_params has {'temperature': 0}; give SamplingParams"),
        ([SamplingParams(), None], "sampling_params has None; give SamplingParams"),
        ([SamplingParams()], "1 sampling_params for 2 prompts; give one, or one for each"),
        ([], "0 sampling_params for 2 prompts"),
        (0, "sampling_params has 0; give SamplingParams"),
    ],
)
def test_parameters_that_are_none_or_too_few_are_refused(params: Any, named: str, llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        llm.generate([[5], [6]], params)
    with pytest.raises(InvalidRequestError, match=named):
        llm.chat([CHAT, CHAT], params)


def test_parameters_may_come_one_by_one(llm: LLM) -> None:
    results = llm.generate([[5], [6]], iter([greedy(1), greedy(2)]))  # type: ignore[arg-type]
    assert [len(result.outputs[0].token_ids) for result in results] == [1, 2]


def test_a_bad_word_without_a_token_is_the_error_of_its_request_alone(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = Tokenizer(BPE(vocab={"a": 5, "b": 6}, merges=[]))
    monkeypatch.setattr(llm, "tokenizer", PreTrainedTokenizerFast(tokenizer_object=letters))
    bad, good = llm.generate(["a", "b"], [greedy(1, bad_words=["é"]), greedy(1)])
    assert "bad_words holds 'é', which has no token" in str(bad.outputs[0].error)
    assert len(good.outputs[0].token_ids) == 1


@pytest.mark.parametrize(
    ("conversation", "named"),
    [
        (None, "The conversation has None; give messages, each a dict with role and content"),
        ("Hi", "The conversation has 'Hi'; give messages"),
        ([CHAT], r"The conversation has \[{'content': .*; give messages"),
        ([{"role": "user"}, "Hi"], "The conversation has 'Hi'; give messages"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "a part of type 'image_url'; this"),
        ([{"role": "user", "content": ["Hi"]}], "a part 'Hi'; this engine reads only text"),
        ([{"role": "user", "content": [{"type": "text"}]}], "a part of type 'text'; this engine reads only text"),
        ([{"role": "user", "content": "no"}], "template refused the messages: TemplateError: roles must alternate"),
        ([{"role": "user", "content": "a\ud800"}], "template refused the messages: "),
    ],
)
def test_a_conversation_that_is_none_is_the_error_of_that_request_alone(
    *, conversation: Any, named: str, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jinja2")
    refusing = "{% if m['content'] == 'no' %}{{ raise_exception('roles must alternate') }}{% endif %}{{ m['content'] }}"
    monkeypatch.setattr(llm.tokenizer, "chat_template", f"{{% for m in messages %}}{refusing}{{% endfor %}}")
    first, bad, last = llm.chat([CHAT, conversation, CHAT], greedy(3))
    assert first.outputs[0].token_ids == last.outputs[0].token_ids
    assert len(first.outputs[0].token_ids) == 3
    assert bad.outputs[0].finish_reason == "error"
    assert re.search(named, str(bad.outputs[0].error)), bad.outputs[0].error


def test_a_template_that_does_not_compile_is_the_error_of_the_call(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jinja2")
    monkeypatch.setattr(llm.tokenizer, "chat_template", "{% for m in messages %}{{ m['content'] ")
    with pytest.raises(InvalidRequestError, match="template cannot be used: TemplateSyntaxError: "):
        llm.chat([CHAT, CHAT], greedy(3))


def test_a_missing_jinja2_is_the_error_of_the_call(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.utils.chat_template_utils.is_jinja_available", lambda: False)
    monkeypatch.setattr(llm.tokenizer, "chat_template", "{# not compiled before #}{{ messages[0]['content'] }}")
    with pytest.raises(InvalidRequestError, match=r"template cannot be used: ImportError: .*jinja2"):
        llm.chat([CHAT, CHAT], greedy(3))


def test_a_message_in_parts_is_their_text_by_lines(llm: LLM) -> None:
    pytest.importorskip("jinja2")
    contents: list[Any] = [[{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}], "Hi\nyou"]
    in_parts, whole = llm.chat([[{"role": "user", "content": content}] for content in contents], greedy(1))
    assert in_parts.prompt_token_ids == whole.prompt_token_ids
    assert in_parts.outputs[0].error is None
