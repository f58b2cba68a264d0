"""Tests of vLLM's names: the same meaning as ours, or an error that names the parameter and ours."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest

from engine import LLM, InvalidConfigError, InvalidParamsError, InvalidRequestError, SamplingParams, StructuredOutput
from engine.config import EngineConfig
from engine.models.config import load_model_config
from engine.vllm_settings import check_quantization, engine_settings
from tests.engine.builders import greedy, new_request
from tests.engine.tiny_models import TinyModel
from tests.engine.worded import SETTINGS

CHAT = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]
WITH_TOOLS = (
    "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
)
WITH_ENDS = "{% for m in messages %}{{ m.content }};{% endfor %}{% if add_generation_prompt %}A:{% endif %}"


class RequestOutputKind(Enum):
    """As in vLLM."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass
class StructuredOutputsParams:
    """As in vLLM 0.22."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None


@pytest.fixture(scope="module")
def llm(worded: TinyModel) -> LLM:
    return LLM(worded.path, **SETTINGS)


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({"gpu_memory_utilization": 0.5}, {"gpu_memory_share": 0.5}),
        ({"tensor_parallel_size": 1}, {}),
        ({"quantization": None, "max_num_seqs": 3}, {"max_num_seqs": 3}),
    ],
)
def test_a_setting_of_vllm_means_ours(given: dict[str, Any], ours: dict[str, Any]) -> None:
    assert engine_settings(given) == ours


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"gpu_memory_utilization": 1.5}, r"gpu_memory_utilization \(here gpu_memory_share\) is 1.5; .* at most 1"),
        ({"gpu_memory_utilization": True}, r"gpu_memory_utilization \(here gpu_memory_share\) is True"),
        ({"gpu_memory_utilization": 0.5, "gpu_memory_share": 0.5}, "gpu_memory_utilization and gpu_memory_share"),
        ({"tensor_parallel_size": 2}, r"tensor_parallel_size is 2; .* device='cuda:N'"),
        ({"tensor_parallel_size": True}, "tensor_parallel_size is True"),
        ({"tensor_parallel_size": None}, "tensor_parallel_size is None"),
    ],
)
def test_a_setting_without_counterpart_is_refused(given: dict[str, Any], named: str, worded: TinyModel) -> None:
    with pytest.raises(InvalidConfigError, match=named):
        LLM(worded.path, **SETTINGS, **given)


@pytest.mark.parametrize("wanted", ["awq", "fp8", 8])
def test_a_quantization_that_the_files_lack_is_refused(wanted: object, worded: TinyModel) -> None:
    config = EngineConfig(model=str(worded.path))
    assert load_model_config(config.model).quantization is None
    with pytest.raises(InvalidConfigError, match=r"quantization is .* not quantized; .* Leave quantization out"):
        check_quantization(wanted, config)


def test_the_quantization_of_the_files_may_be_named() -> None:
    check_quantization("gguf", EngineConfig(model="model.gguf"))
    with pytest.raises(InvalidConfigError, match=r"quantization is 'awq', and .* are in 'gguf'"):
        check_quantization("awq", EngineConfig(model="model.gguf"))


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        (StructuredOutputsParams(regex="a+"), StructuredOutput(regex="a+", any_whitespace=True)),
        (StructuredOutputsParams(choice=["a", "b"], disable_any_whitespace=True), StructuredOutput(choice=["a", "b"])),
        ({"json": {"type": "object"}}, StructuredOutput(json={"type": "object"})),
        (
            {"json_object": True, "disable_any_whitespace": False},
            StructuredOutput(json_object=True, any_whitespace=True),
        ),
        ({"grammar": 'root ::= "a"', "json": None}, StructuredOutput(grammar='root ::= "a"')),
        (StructuredOutput(regex="a"), StructuredOutput(regex="a")),
    ],
)
def test_structured_outputs_is_structured(given: Any, ours: StructuredOutput) -> None:
    assert SamplingParams(structured_outputs=given) == SamplingParams(structured=ours)


@pytest.mark.parametrize("kind", ["FINAL_ONLY", "CUMULATIVE", RequestOutputKind.FINAL_ONLY, None])
def test_an_output_kind_of_whole_outputs_is_what_llm_returns(kind: Any) -> None:
    assert SamplingParams(output_kind=kind) == SamplingParams()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"structured_outputs": {"json": "{}", "regex": "a"}}, "structured output has json and regex"),
        ({"structured_outputs": {}}, "structured_outputs has {}; give one of json"),
        ({"structured_outputs": 5}, "structured_outputs has 5; give one of json"),
        (
            {"structured_outputs": StructuredOutputsParams(json="{}", whitespace_pattern=" ")},
            r"structured_outputs has whitespace_pattern; .* structured=StructuredOutput",
        ),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs has structural_tag"),
        ({"structured_outputs": {"json": "{}", "disable_any_whitespace": 1}}, "disable_any_whitespace is 1"),
        (
            {"structured_outputs": {"regex": "a"}, "structured": StructuredOutput(regex="a")},
            "structured and structured_outputs are both given",
        ),
        ({"output_kind": RequestOutputKind.DELTA}, r"output_kind is 'DELTA'; .* TokenDelta"),
        ({"output_kind": 2}, "output_kind is 2; LLM returns whole outputs, FINAL_ONLY or CUMULATIVE"),
        ({"logprobs": -1}, "logprobs is -1, vLLM's value for the whole vocabulary; .* Give 0 to 20"),
        ({"prompt_logprobs": -1}, "prompt_logprobs is -1, vLLM's value for the whole vocabulary"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens is 0; .* at least 1, or -1"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens is -2; .* at least 1, or -1"),
        ({"truncate_prompt_tokens": 1.5}, "truncate_prompt_tokens is 1.5; .* at least 1, or -1"),
        ({"truncate_prompt_tokens": True}, "truncate_prompt_tokens is True; .* at least 1, or -1"),
    ],
)
def test_a_parameter_without_counterpart_is_refused(given: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidParamsError, match=named):
        SamplingParams(**given)


@pytest.mark.parametrize(
    ("truncate", "max_tokens", "num_kept"), [(1, 4, 1), (3, 4, 3), (300, 4, 9), (-1, 4, 9), (-1, 250, 6), (None, 4, 9)]
)
def test_the_end_of_a_prompt_is_kept(truncate: int | None, max_tokens: int, num_kept: int, llm: LLM) -> None:
    prompt = list(range(5, 14))
    params = greedy(max_tokens, truncate_prompt_tokens=truncate)
    cut, whole = llm.generate([prompt, prompt[-num_kept:]], [params, greedy(max_tokens)])
    assert cut.prompt_token_ids == prompt[-num_kept:]
    assert cut.outputs == whole.outputs


def test_a_prompt_of_which_no_token_fits_is_an_error_of_its_request(llm: LLM) -> None:
    params = [greedy(256, truncate_prompt_tokens=-1), greedy(2)]
    refused, good = llm.generate([[5, 6], [5, 6]], params)
    assert "truncate_prompt_tokens is -1 and max_tokens is 256" in str(refused.outputs[0].error)
    assert good.outputs[0].error is None


def test_an_engine_refuses_to_truncate(llm: LLM) -> None:
    llm.engine.add(new_request(10**6, [5, 6], params=greedy(2, truncate_prompt_tokens=1)))
    (delta,) = llm.engine.step()
    assert "truncate_prompt_tokens" in str(delta.error)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"chat_template": "x{{ messages[0].content }}"}, "xHi"),
        ({"chat_template": WITH_TOOLS, "tools": TOOLS}, "findHi"),
        ({"chat_template": WITH_ENDS}, "Hi;A:"),
        ({"chat_template": WITH_ENDS, "add_generation_prompt": False}, "Hi;"),
        ({"chat_template": WITH_ENDS, "add_generation_prompt": False, "continue_final_message": True}, "Hi"),
    ],
)
def test_a_chat_has_the_options_of_vllm(options: dict[str, Any], text: str, llm: LLM) -> None:
    pytest.importorskip("jinja2")
    (result,) = llm.chat(CHAT, greedy(1), **options)
    assert llm.tokenizer.decode(result.prompt_token_ids) == text


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"continue_final_message": True}, r"continue_final_message is True with add_generation_prompt"),
        ({"continue_final_message": 1}, "continue_final_message is 1; it must be True or False"),
        ({"add_generation_prompt": None}, "add_generation_prompt is None; it must be True or False"),
        ({"chat_template": 5}, "chat_template is 5; give the text of a Jinja template"),
        ({"chat_template": ""}, "chat_template is ''; give the text of a Jinja template"),
        ({"tools": []}, r"tools is \[\]; give a list of at least one tool"),
        ({"tools": "find"}, "tools is 'find'; give a list of at least one tool"),
        ({"tools": [{"name": "find"}]}, "tools holds .*; a tool is a dict with type 'function'"),
    ],
)
def test_a_wrong_option_of_a_chat_is_refused(options: dict[str, Any], named: str, llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        llm.chat(CHAT, greedy(1), **options)


def test_tools_that_a_template_leaves_out_are_an_error(llm: LLM) -> None:
    pytest.importorskip("jinja2")
    (result,) = llm.chat(CHAT, greedy(1), tools=TOOLS)
    assert "tools are given, and the chat template does not write them" in str(result.outputs[0].error)


def test_a_model_without_a_chat_template_takes_the_given_one(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jinja2")
    monkeypatch.setattr(llm.tokenizer, "chat_template", None)
    (result,) = llm.chat(CHAT, greedy(1), chat_template="{{ messages[0].content }}")
    assert llm.tokenizer.decode(result.prompt_token_ids) == "Hi"
