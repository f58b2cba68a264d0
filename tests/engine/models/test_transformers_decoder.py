from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from engine.build import build_engine
from engine.config import EngineConfig
from engine.errors import InvalidConfigError, ModelLoadError, UnsupportedModelError
from engine.loop.core import Engine
from engine.models import transformers_decoder
from engine.models.config import CheckpointConfig, ModelConfig, load_model_config
from engine.models.step_model import new_cache
from engine.models.transformers_checks import probe_tokens
from engine.models.transformers_decoder import TransformersDecoder, _probe_step
from engine.models.transformers_loading import load_model
from engine.params import SamplingParams
from tests.engine.builders import new_request, runner_of
from tests.engine.models.families import TINY

pytestmark = pytest.mark.comparison

CPU = torch.device("cpu")

SHAPE: dict[str, Any] = {**TINY, "eos_token_id": 2}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 64,
}

Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Save a random model of a model_type with settings on top of SHAPE."""

    def write(model_type: str, **settings: Any) -> Path:
        torch.manual_seed(7)
        config = AutoConfig.for_model(model_type, **{**SHAPE, **settings})
        AutoModelForCausalLM.from_config(config, attn_implementation="eager").save_pretrained(tmp_path)
        return tmp_path

    return write


def edit(path: Path, **changes: Any) -> Path:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changes}))
    return path


def load(path: Path, **settings: Any) -> Engine:
    return build_engine(
        EngineConfig(
            model=str(path), device="cpu", num_kv_blocks=40, max_num_seqs=4, warm_up=False, num_threads=1, **settings
        )
    )


def decoder(path: Path) -> TransformersDecoder:
    config = load_model_config(str(path))
    assert config.max_model_len is not None
    with torch.inference_mode():
        return TransformersDecoder(config, dtype=torch.float32, device=CPU, max_positions=config.max_model_len)


def tokens_of(engine: Engine, prompts: list[list[int]], **params: Any) -> list[list[int]]:
    for index, prompt in enumerate(prompts):
        engine.add(
            new_request(index, prompt, params=SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, **params))
        )
    outputs: list[list[int]] = [[] for _ in prompts]
    while engine.has_work:
        for delta in engine.step():
            assert delta.error is None
            outputs[delta.request_id] += delta.token_ids
    return outputs


def test_auto_takes_our_own_decoder_where_it_covers_the_model(save: Save) -> None:
    path = save("llama")
    assert isinstance(load_model_config(str(path)), ModelConfig)
    assert type(load_model_config(str(edit(path, hidden_act="gelu")))) is CheckpointConfig


def test_a_prompt_is_computed_once_for_all_its_log_probabilities(save: Save) -> None:
    path = save("gemma2", head_dim=16, final_logit_softcapping=3.0, sliding_window=200)
    engine, prompt, calls = load(path, dtype="float32"), [(7 * index) % 190 + 3 for index in range(100)], list[int]()
    inner = cast("TransformersDecoder", runner_of(engine)._model)._model
    inner.model.layers[0].register_forward_hook(lambda *given: calls.append(given[1][0].shape[1]))
    engine.add(new_request(0, prompt, params=SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)))
    (delta,) = [delta for _ in range(2) for delta in engine.step()]
    assert calls == [100], "4 parts of at most 32 rows"
    oracle = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        expected = oracle(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
    own = expected.gather(-1, torch.tensor(prompt[1:])[:, None])[:, 0]
    assert delta.prompt_logprobs is not None
    assert [entry.logprob for entry in delta.prompt_logprobs] == pytest.approx(own.tolist(), abs=1e-3)


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("bloom", {"hidden_size": 64, "n_layer": 1, "n_head": 4}),
        ("xlnet", {"d_model": 64, "n_layer": 1, "n_head": 4, "d_inner": 64}),
    ],
)
def test_a_model_without_a_longest_sequence_is_asked_for_one_and_then_refused_for_what_it_lacks(
    model_type: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    config = AutoConfig.for_model(model_type, vocab_size=200, **settings)
    AutoModelForCausalLM.from_config(config, attn_implementation="eager").save_pretrained(tmp_path)
    with pytest.raises(InvalidConfigError, match=r"max_position_embeddings.*max_model_len"):
        load(tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"no attention function|computes the logits of every token"):
        load(tmp_path, max_model_len=64)


def test_mpts_own_name_for_the_longest_sequence_is_read(tmp_path: Path) -> None:
    config = AutoConfig.for_model("mpt", vocab_size=200, d_model=64, n_layers=1, n_heads=4, max_seq_len=96)
    AutoModelForCausalLM.from_config(config, attn_implementation="eager").save_pretrained(tmp_path)
    assert load_model_config(str(tmp_path)).max_model_len == 96
    with pytest.raises(UnsupportedModelError, match="no attention function"):
        load(tmp_path, max_model_len=64)


def test_a_window_is_read_off_the_mask_of_each_layer(save: Save) -> None:
    path = save("gemma3_text", sliding_window=8, layer_types=["sliding_attention", "full_attention"], head_dim=16)
    assert [layer.window for layer in decoder(path)._layers] == [8, None]


def test_layers_that_cache_different_shapes_get_them(save: Save) -> None:
    path = save("gemma4_text", layer_types=["sliding_attention", "full_attention"], head_dim=16, global_head_dim=32,
                hidden_size_per_layer_input=16, vocab_size_per_layer_input=200)  # fmt: skip
    shapes = decoder(path).kv_shapes
    assert [(shape.num_heads, shape.head_dim) for shape in shapes] == [(2, 16), (2, 32)]


def test_stale_blocks_full_of_nan_are_never_read(save: Save) -> None:
    path, prompts = save("gpt_neox"), [[5, 9, 60], [7] * 20, [8]]
    engine = load(path, enable_prefix_caching=False)
    expected = tokens_of(engine, prompts)
    runner_of(engine).fill_cache(float("nan"))
    assert tokens_of(engine, prompts) == expected


def test_logits_in_parts_are_those_of_one_run(save: Save) -> None:
    model = decoder(save("gpt2"))
    step = _probe_step([[5, 6, 7, 8], [11, 12, 13, 14]], range(4), 2, CPU)
    cache = new_cache(model.kv_shapes, num_blocks=5, block_size=3, dtype=torch.float32, device=CPU)
    parts = [torch.tensor([0, 3]), torch.tensor([6]), torch.tensor([], dtype=torch.long)]
    with torch.inference_mode():
        whole = model.run(step, cache, torch.cat(parts))
        in_parts = list(model.run_in_parts(step, cache, parts))
    assert [part.shape[0] for part in in_parts] == [2, 1, 0]
    torch.testing.assert_close(torch.cat(in_parts), whole)


@pytest.mark.parametrize("model_type", ["gpt2", "olmoe", "gemma2", "gpt_oss"])
def test_half_precision_passes_the_check_at_load_and_runs(model_type: str, save: Save) -> None:
    engine = load(save(model_type), dtype="bfloat16")
    assert [len(tokens) for tokens in tokens_of(engine, [[5, 9, 60], [7] * 20])] == [8, 8]


@pytest.mark.parametrize("spread", ["forward", "backward"])
def test_a_model_that_mixes_tokens_outside_attention_is_refused(
    spread: str, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mix(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        rolled = output.roll(1 if spread == "forward" else -1, dims=1)
        return output + 0.1 * rolled

    def load_with_hook(config: Any, **kwargs: Any) -> Any:
        model = load_model(config, **kwargs)
        model.get_input_embeddings().register_forward_hook(mix)
        return model

    monkeypatch.setattr(transformers_decoder, "load_model", load_with_hook)
    with pytest.raises(UnsupportedModelError, match="carries something from token to token"):
        load(save("gpt2"))


def test_longrope_of_one_type_of_layers_is_refused_above_the_length_that_changes_its_angles(save: Save) -> None:
    kinds = {"full_attention": LONGROPE, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    path = save("gemma3_text", rope_parameters=kinds, head_dim=16, layer_types=list(kinds))
    with pytest.raises(UnsupportedModelError, match="longrope rope scaling it may be at most 64"):
        load(path)
    assert len(tokens_of(load(path, max_model_len=64), [[5] * 40])[0]) == 8


@pytest.mark.parametrize(
    ("model_type", "settings", "reason"),
    [
        ("bert", {}, "neither causal nor a sliding window"),
        ("bart", {"d_model": 64, "decoder_layers": 2, "is_encoder_decoder": True}, "encoder-decoder"),
        (
            "llama4_text",
            {"layer_types": ["full_attention"] * 2, "no_rope_layers": [0, 0], "head_dim": 16, "num_local_experts": 2},
            "attn_temperature_tuning",
        ),
    ],
)
def test_what_the_engine_lacks_is_named(model_type: str, settings: dict[str, Any], reason: str, save: Save) -> None:
    path = edit(save(model_type, **settings), **{k: v for k, v in settings.items() if k == "is_encoder_decoder"})
    with pytest.raises(UnsupportedModelError, match=reason):
        load(path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "nonesuch"}, "no causal language model"),
        ({"model_type": "t5"}, "no causal language model"),
        ({"architectures": ["GPT2ForSequenceClassification"]}, "GPT2ForSequenceClassification"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantized"),
    ],
)
def test_a_config_that_cannot_be_run_is_refused_before_the_weights_load(
    changes: dict[str, Any], reason: str, save: Save
) -> None:
    with pytest.raises(UnsupportedModelError, match=reason):
        load_model_config(str(edit(save("gpt2"), **changes)))


def test_missing_weights_are_named_and_not_made_up(save: Save) -> None:
    with pytest.raises(ModelLoadError, match=r"no tensor .*h\.2\."):
        load(edit(save("gpt2"), n_layer=3, num_hidden_layers=3))


def test_weights_of_another_shape_are_named_with_both_shapes(save: Save) -> None:
    path = edit(save("gpt2"), vocab_size=100)
    with pytest.raises(
        ModelLoadError, match=rf"{path}: tensor .*wte\.weight has shape \(200, 64\), config.json has \(100, 64\)"
    ):
        load(path)


def test_transformers_report_on_tensors_says_which_model_it_is_about(
    save: Save, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save("gpt2")
    tensors = load_file(path / "model.safetensors")
    save_file({**tensors, "transformer.extra": torch.ones(1)}, path / "model.safetensors")
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    load(path)
    (report,) = {message for message in caplog.messages if "LOAD REPORT" in message}
    assert f"from: {path}\n" in report
    assert "transformer.extra" in report


@pytest.mark.parametrize(
    "changes",
    [
        {"attn_implementation": "flash_attention_2"},
        {"_attn_implementation": "flash_attention_2"},
        {"dtype": "float8_e4m3fn"},
        {"dtype": "int8"},
        {"auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}},
    ],
)
@pytest.mark.parametrize("random_seed", [None, 3])
def test_the_attention_the_dtype_and_the_code_that_config_json_names_are_not_used(
    changes: dict[str, Any], random_seed: int | None, save: Save
) -> None:
    config = load_model_config(str(edit(save("gpt2"), **changes)))
    with torch.inference_mode():
        model = TransformersDecoder(config, dtype=torch.float32, device=CPU, max_positions=64, random_seed=random_seed)
    assert {weight.dtype for weight in model._model.parameters()} == {torch.float32}


def test_only_safetensors_are_read(save: Save) -> None:
    path = save("gpt2")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="only safetensors"):
        load(path)


def test_a_model_impl_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(
        InvalidConfigError, match="model_impl is 'vllm'; it must be one of auto, tokenmill, transformers"
    ):
        EngineConfig(model="m", model_impl="vllm")  # type: ignore[arg-type]


def test_the_probe_uses_no_token_with_a_role() -> None:
    config = AutoConfig.for_model("gpt2", vocab_size=40, eos_token_id=[3, 4], bos_token_id=5, pad_token_id=6)
    tokens = probe_tokens(config, 12)
    assert len(set(tokens)) == 12
    assert not {3, 4, 5, 6} & set(tokens)
