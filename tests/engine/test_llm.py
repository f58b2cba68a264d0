from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine import LLM, InvalidConfigError, InvalidRequestError, ModelLoadError, SamplingParams, UnsupportedModelError
from engine.config import ModelImpl
from engine.models.config import load_model_config
from engine.text import with_bad_words_as_tokens
from tests.engine.builders import greedy
from tests.engine.texts import byte_level
from tests.engine.tiny_models import VARIANTS, TinyModel, TinyModels, save_tiny
from tests.engine.worded import SETTINGS, TEMPLATE

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def llm(worded: TinyModel) -> LLM:
    return LLM(worded.path, **SETTINGS)


def test_results_come_in_order_and_equal_transformers(llm: LLM, worded: TinyModel) -> None:
    params = [SamplingParams(temperature=0.0, max_tokens=limit) for limit in worded.max_tokens]
    results = llm.generate(worded.prompts, params)
    assert [result.outputs[0].token_ids for result in results] == worded.expected
    assert [result.prompt_token_ids for result in results] == worded.prompts
    for result in results:
        ended = result.outputs[0].token_ids[-1] == 2
        assert result.outputs[0].finish_reason == ("stop" if ended else "length")


def test_only_what_was_cached_before_the_request_counts_as_cached(llm: LLM) -> None:
    prompt = [7] * 70
    cold, warm = (llm.generate([prompt], SamplingParams(n=3, max_tokens=2, seed=1))[0] for _ in range(2))
    assert cold.num_cached_tokens == 0
    assert 0 < warm.num_cached_tokens < len(prompt)


def test_text_is_the_full_decode_without_the_end_token(llm: LLM) -> None:
    (result,) = llm.generate("Hello", SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True))
    assert result.prompt == "Hello"
    assert result.outputs[0].text == llm.tokenizer.decode(result.outputs[0].token_ids, skip_special_tokens=True)


def test_a_stop_string_ends_the_text_and_the_request(llm: LLM) -> None:
    free = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    (whole,) = llm.generate("Hello", free)
    text = whole.outputs[0].text
    stop = text[6:8]
    end = text.index(stop)
    for include in (False, True):
        params = SamplingParams(
            temperature=0.0, max_tokens=40, ignore_eos=True, stop=stop, include_stop_str_in_output=include
        )
        (result,) = llm.generate("Hello", params)
        assert result.outputs[0].text == text[: end + (len(stop) if include else 0)]
        assert (result.outputs[0].finish_reason, result.outputs[0].stop_reason) == ("stop", stop)
        assert len(result.outputs[0].token_ids) < 40


def test_bad_words_are_not_said_with_or_without_a_space_before(llm: LLM) -> None:
    free = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    (whole,) = llm.generate("Hello", free)
    letter = next(character for character in whole.outputs[0].text if character.isascii() and character.isalpha())
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, bad_words=[letter])
    (result,) = llm.generate("Hello", params)
    assert letter not in result.outputs[0].text
    params = with_bad_words_as_tokens(SamplingParams(bad_words=["ab", " ab", "c"]), llm.tokenizer)
    spelled = [llm.tokenizer.encode(text, add_special_tokens=False) for text in ("ab", " ab", "c", " c")]
    assert [list(ids) for ids in params.bad_words_token_ids] == spelled
    assert params.bad_words == ()


def test_a_chat_has_exactly_one_bos(llm: LLM) -> None:
    pytest.importorskip("jinja2")
    (result,) = llm.chat([{"role": "user", "content": "Hi"}], SamplingParams(max_tokens=1))
    assert result.prompt_token_ids.count(llm.tokenizer.bos_token_id) == 1
    assert len(result.prompt_token_ids) == 3


def test_a_bos_from_both_the_template_and_the_tokenizer_comes_once(worded: TinyModel, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    shutil.copytree(worded.path, tmp_path, dirs_exist_ok=True)
    backend = byte_level()
    backend.post_processor = TemplateProcessing(single="! $A", special_tokens=[("!", backend.token_to_id("!"))])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="!", eos_token='"')
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path)
    llm = LLM(tmp_path, **SETTINGS)
    (chat,) = llm.chat([{"role": "user", "content": "Hi"}], greedy(1))
    (plain,) = llm.generate(["Hi"], greedy(1))
    assert chat.prompt_token_ids == plain.prompt_token_ids
    assert chat.prompt_token_ids.count(tokenizer.bos_token_id) == 1


def test_one_bad_request_does_not_stop_the_others(llm: LLM) -> None:
    results = llm.generate([[5] * 300, [5, 6]], SamplingParams(max_tokens=3, ignore_eos=True))
    assert results[0].outputs[0].finish_reason == "error"
    assert "context of 256" in str(results[0].outputs[0].error)
    assert len(results[1].outputs[0].token_ids) == 3


def test_n_children_and_logprobs_come_back(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=1, max_tokens=4, ignore_eos=True, logprobs=2)
    (result,) = llm.generate([[7, 8, 9]], params)
    assert [output.index for output in result.outputs] == [0, 1, 2]
    for output in result.outputs:
        assert output.logprobs is not None
        for token, entry in zip(output.token_ids, output.logprobs, strict=True):
            assert token in entry
            assert 2 <= len(entry) <= 3
        assert output.cumulative_logprob == pytest.approx(
            sum(entry[token].logprob for token, entry in zip(output.token_ids, output.logprobs, strict=True))
        )


def test_text_without_a_tokenizer_is_refused(tiny_models: TinyModels) -> None:
    bare = LLM(tiny_models["llama-gqa"].path, **SETTINGS)
    with pytest.raises(InvalidRequestError, match="no tokenizer"):
        bare.generate("Hello")
    with pytest.raises(InvalidRequestError, match="no chat template"):
        bare.chat([{"role": "user", "content": "Hi"}])
    (result,) = bare.generate([[5, 6]], SamplingParams(max_tokens=2, ignore_eos=True))
    assert result.outputs[0].text == ""


def test_sharded_weights_are_read(tmp_path: Path, tiny_models: TinyModels) -> None:
    save_tiny(tmp_path, VARIANTS["llama-gqa"], max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    model = tiny_models["llama-gqa"]
    (result,) = LLM(tmp_path, **SETTINGS).generate(
        [model.prompts[0]], SamplingParams(temperature=0.0, max_tokens=model.max_tokens[0])
    )
    assert result.outputs[0].token_ids == model.expected[0]


def edited(model: TinyModel, tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "edited"
    shutil.copytree(model.path, path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changes}))
    return path


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantiz"),
        (
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "factor": 2.0,
                    "short_factor": [1.0] * 4,
                    "long_factor": [2.0] * 4,
                    "original_max_position_embeddings": 64,
                }
            },
            "longrope",
        ),
    ],
)
def test_what_a_model_needs_and_our_own_decoder_lacks_is_named(
    *, changes: dict[str, Any], named: str, tmp_path: Path, tiny_models: TinyModels
) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        load_model_config(str(edited(tiny_models["llama-gqa"], tmp_path, **changes)), impl=ModelImpl.TOKENMILL)


def test_weights_that_do_not_belong_to_the_config_are_named(tmp_path: Path, tiny_models: TinyModels) -> None:
    path = edited(tiny_models["llama-gqa"], tmp_path, intermediate_size=100)
    with pytest.raises(ModelLoadError, match=r"gate_proj.weight has shape \(96, 48\)"):
        LLM(path, **SETTINGS)


def test_the_old_spelling_of_rope_settings_is_read(tmp_path: Path, tiny_models: TinyModels) -> None:
    path = edited(
        tiny_models["llama-gqa"],
        tmp_path,
        rope_parameters=None,
        rope_theta=5e5,
        rope_scaling={"type": "linear", "factor": 2.0},
    )
    rope = load_model_config(str(path)).source.rope_parameters
    assert (rope["rope_type"], rope["rope_theta"], rope["factor"]) == ("linear", 5e5, 2.0)


@pytest.mark.parametrize(
    "bad",
    [
        {"dtype": "int8"},
        {"device": "tpu"},
        {"block_size": 0},
        {"max_num_seqs": 600, "max_num_batched_tokens": 512},
        {"admission": "never"},
        {"max_model_len": 10_000},
        {"device": None},
        {"seed": "x"},
        {"seed": 2**70},
        {"enable_prefix_caching": "no"},
        {"overlap": "no"},
        {"warm_up": 0},
        {"grammar_timeout_seconds": "10"},
        {"grammar_timeout_seconds": float("nan")},
        {"swap_space_gib": None},
        {"cpu_memory_share": "0.5"},
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(bad: dict[str, Any], tiny_models: TinyModels) -> None:
    with pytest.raises(InvalidConfigError, match=next(iter(bad))):
        LLM(tiny_models["llama-gqa"].path, **{**SETTINGS, **bad})


def test_every_exported_name_can_be_imported() -> None:
    import engine

    assert sorted(engine.__all__) == sorted(engine._HOME)
    assert all(getattr(engine, name) is not None for name in engine.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = engine.nothing


def test_transformers_builds_a_model_with_our_kernels_package_on_the_path() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import kernels; assert kernels.__file__.startswith(sys.path[0])\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "LlamaForCausalLM(LlamaConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1,"
        " num_attention_heads=2, vocab_size=16))\n"
        "print('built')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "built", done.stderr
