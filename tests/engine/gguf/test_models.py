"""Tests that a model in a GGUF file equals the original: its configuration, its weights, its tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.errors import ModelLoadError, UnsupportedModelError
from engine.models.config import ModelConfig, load_model_config
from engine.models.paths import resolve_model_path
from engine.models.weights import Checkpoint
from tests.engine.gguf.builders import As, Written, f32
from tests.engine.gguf.conversion import as_q8_0, save, written_as_gguf
from tests.engine.models.builders import build_family, check_run
from tests.engine.models.families import RUNS, SMALLEST_LEAD, Family
from tests.engine.tiny_models import TinyModel, greedy

pytestmark = pytest.mark.comparison

PROMPTS = [[5, 17, 100, 44, 9, 23, 71], [150, 3, 3, 8], [60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71], [199]]
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
BIASED = {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}

MODELS = {
    "llama": Family(model_type="llama", models=""),
    "llama-tied-biased-linear": Family(
        model_type="llama",
        models="",
        settings={**BIASED, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "llama-llama3": Family(
        model_type="llama",
        models="",
        settings={"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
    ),
    "llama-yarn": Family(model_type="llama", models="", settings={"rope_parameters": YARN}),
    "qwen2": Family(model_type="qwen2", models=""),
    "qwen3": Family(model_type="qwen3", models="", settings={"head_dim": 24, "tie_word_embeddings": True}),
}


def llama3_factors(theta: float, size: int) -> list[float]:
    """Return what llama.cpp's converter writes for Llama 3.1: by what each frequency is divided."""
    factors = []
    for index in range(size // 2):
        wavelength = 2 * math.pi * theta ** (2 * index / size)
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192:
            factors.append(8.0)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            factors.append(1 / ((1 - smooth) / 8 + smooth))
    assert len(set(factors)) > 2
    return factors


def made(name: str, *, seed: int = 0) -> tuple[Any, Written]:
    model = build_family(MODELS[name], seed=seed)
    return model, written_as_gguf(model, rope_factors=llama3_factors(5e5, 16) if name == "llama-llama3" else None)


def weights(path: Path, *, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    with Checkpoint(path, dtype=dtype) as checkpoint:
        return {name: tensor[...] for name, tensor in checkpoint.tensors().items()}


def expected_of(model: Any, path: Path) -> TinyModel | None:
    outputs = greedy(model, PROMPTS, [12] * len(PROMPTS))
    if min(min(leads) for _, leads in outputs) < SMALLEST_LEAD:
        return None
    return TinyModel(path, PROMPTS, [12] * len(PROMPTS), [tokens for tokens, _ in outputs])


@pytest.mark.parametrize("name", MODELS)
def test_a_written_model_gives_its_weights_and_transformers_tokens(name: str, tmp_path: Path) -> None:
    for seed in range(20):
        model, written = made(name, seed=seed)
        path = save(written, tmp_path)
        expected = expected_of(model, path)
        if expected is not None:
            break
    assert expected is not None, "every seed has a near-tie"
    assert isinstance(load_model_config(str(path)), ModelConfig)
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    got = weights(path)
    assert got.keys() == state.keys()
    assert all(torch.equal(got[key], state[key]) for key in state)
    for impl in ("tokenmill", "transformers") if name in ("llama", "llama-llama3") else ("tokenmill",):
        check_run(expected, RUNS[0], impl)


def test_quantized_rows_go_back_to_their_places(tmp_path: Path) -> None:
    model = build_family(MODELS["llama"], seed=0)
    got = weights(save(written_as_gguf(model, kind="Q8_0"), tmp_path))
    for name, tensor in model.state_dict().items():
        assert torch.equal(got[name], as_q8_0(tensor) if tensor.ndim == 2 else tensor), name


def test_the_configuration_says_what_the_metadata_says(tmp_path: Path) -> None:
    _, written = made("llama-tied-biased-linear")
    written.metadata |= {"tokenizer.ggml.eos_token_id": 7, "tokenizer.ggml.eot_token_id": 9}
    config = load_model_config(str(save(written, tmp_path)))
    assert isinstance(config, ModelConfig)
    assert config.dtype == "float32"
    assert config.eos_token_ids == (7, 9)
    assert (config.vocab_size, config.max_model_len, config.head_dim) == (200, 128, 16)
    assert (config.has_tied_embeddings, config.has_qkv_bias, config.has_output_bias, config.has_mlp_bias) == (True,) * 4
    assert config.rms_norm_eps == pytest.approx(1e-6)


def ends(tokens: Any, kinds: Any, folder: Path, **named: int) -> tuple[int, ...]:
    _, written = made("qwen2")
    written.metadata |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    written.metadata |= {f"tokenizer.ggml.{name}": value for name, value in named.items()}
    config = load_model_config(str(save(written, folder)))
    assert isinstance(config, ModelConfig)
    return config.eos_token_ids


def test_an_answer_ends_with_each_control_token_whose_text_is_an_end(tmp_path: Path) -> None:
    normal, control, own = As("i32", 1), As("i32", 3), As("i32", 4)
    qwen = ["a", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "</tool_call>"]
    assert ends(qwen, [normal, control, control, control, own], tmp_path, eos_token_id=3) == (3, 1)
    llama = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"]
    assert ends(llama, [control] * 4, tmp_path, eos_token_id=1) == (1, 2, 3)
    others = ["<|end|>", "</s>", "<end_of_turn>", "<|end_of_turn|>", "<s>"]
    assert ends(others, [control] * 5, tmp_path) == (0, 1, 2, 3)
    assert ends(["</s>", "<|end|>"], [normal, own], tmp_path, eot_token_id=7) == (7,)
    assert ends(7, [control], tmp_path, eos_token_id=5) == (5,)


def test_quantized_weights_are_taken_as_bf16(tmp_path: Path) -> None:
    written = written_as_gguf(build_family(MODELS["llama"], seed=0), kind="Q8_0")
    assert load_model_config(str(save(written, tmp_path))).dtype == "bfloat16"


def metadata(**changes: Any) -> Callable[[Written], object]:
    """Return a change of keys, whose dots are double underlines; None takes one out."""

    def change(written: Written) -> None:
        for name, value in changes.items():
            key = name.replace("__", ".")
            if value is None:
                del written.metadata[key]
            else:
                written.metadata[key] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            metadata(general__architecture="gemma3"),
            "general.architecture 'gemma3'; of GGUF files the engine runs llama",
        ),
        (metadata(general__type="adapter"), "of the type 'adapter'"),
        (metadata(split__count=3), "is one of 3 parts of a model"),
        (metadata(llama__expert_count=8), "has llama.expert_count 8"),
        (metadata(llama__attention__causal=False), "has llama.attention.causal False"),
        (metadata(llama__attention__sliding_window=4096), "has llama.attention.sliding_window 4096"),
        (metadata(llama__pooling_type=3), "has llama.pooling_type 3"),
        (metadata(llama__logit_scale=0.5), "has llama.logit_scale 0.5"),
        (metadata(llama__rope__dimension_count=8), "llama.rope.dimension_count 8 and heads of 16"),
        (metadata(llama__attention__value_length=8), "llama.attention.value_length 8 and heads of 16"),
        (metadata(llama__attention__head_count_kv=[2, 4]), "has a llama.attention.head_count_kv for each layer"),
        (metadata(llama__rope__scaling__type="longrope"), "rope.scaling.type 'longrope'"),
        (lambda w: w.tensors.update({"blk.0.attn_sinks.weight": f32((4,), [0] * 4)}), "has a tensor blk.0.attn_sinks"),
        (lambda w: w.tensors.update({"blk.0.ffn_up.scale": f32((1,), [0])}), "has a tensor blk.0.ffn_up.scale"),
        (lambda w: w.tensors.update({"rope_freqs.weight": f32((8,), range(1, 9))}), "not those of Llama 3.1"),
        (lambda w: w.tensors.update({"rope_freqs.weight": f32((2,), [1, 8])}), "not those of Llama 3.1"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    change: Callable[[Written], object], said: str, tmp_path: Path
) -> None:
    _, written = made("llama")
    change(written)
    path = save(written, tmp_path)
    with pytest.raises(UnsupportedModelError) as caught:
        weights(load_model_config(str(path)).path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("llama", "blk.0.attn_output.bias"),
        ("llama", "blk.0.attn_norm.bias"),
        ("llama", "blk.0.ffn_down.bias"),
        ("llama", "blk.0.attn_q_norm.weight"),
        ("llama", "blk.1.attn_q.bias"),
        ("llama", "blk.7.attn_q.weight"),
        ("llama", "blk.00.attn_q.weight"),
        ("llama", "output.bias"),
        ("llama", "output_norm.bias"),
        ("llama-tied-biased-linear", "blk.0.ffn_norm.bias"),
        ("qwen2", "blk.0.attn_output.bias"),
        ("qwen2", "blk.0.attn_k_norm.weight"),
        ("qwen2", "blk.0.ffn_gate.bias"),
        ("qwen3", "blk.0.attn_q_norm.bias"),
        ("qwen3", "blk.2.attn_q_norm.weight"),
    ],
)
def test_a_tensor_that_would_never_be_read_is_refused_by_name(model: str, name: str, tmp_path: Path) -> None:
    _, written = made(model)
    written.tensors[name] = f32((64,), [0.0] * 64)
    path = save(written, tmp_path)
    with pytest.raises(UnsupportedModelError) as caught:
        weights(path)
    assert f"{path} has a tensor {name}, which our engine's decoder does not have" in str(caught.value)
    assert "in the layers blk.0 to blk.1, weights of attn_norm, attn_q" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (metadata(llama__block_count=None), "has no value for llama.block_count; it must be a whole number"),
        (metadata(llama__block_count=0), "has 0 for llama.block_count"),
        (metadata(llama__embedding_length="64"), "has '64' for llama.embedding_length"),
        (metadata(llama__attention__layer_norm_rms_epsilon=-1.0), "has -1.0 for llama.attention.layer_norm_rms_eps"),
        (
            metadata(tokenizer__ggml__eos_token_id="x"),
            "has tokenizer.ggml.eos_token_id 'x'; it must be a token id",
        ),
        (lambda w: w.tensors.pop("token_embd.weight"), "has no tensor token_embd.weight"),
    ],
)
def test_a_wrong_key_is_named(change: Callable[[Written], object], said: str, tmp_path: Path) -> None:
    _, written = made("llama")
    change(written)
    with pytest.raises(ModelLoadError) as caught:
        load_model_config(str(save(written, tmp_path)))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w.tensors.pop("blk.1.ffn_up.weight"), "has no tensor model.layers.1.mlp.up_proj.weight"),
        (metadata(llama__feed_forward_length=95), "has shape (96, 64), metadata says (95, 64)"),
    ],
)
def test_weights_that_do_not_belong_to_the_metadata_are_named(
    change: Callable[[Written], object], said: str, tmp_path: Path
) -> None:
    _, written = made("llama")
    change(written)
    with pytest.raises(ModelLoadError) as caught:
        check_run(TinyModel(save(written, tmp_path), PROMPTS, [1] * 4, [[]] * 4), RUNS[0], "tokenmill")
    assert said in str(caught.value)


def test_a_file_is_found_by_its_name(tmp_path: Path) -> None:
    path = save(made("llama")[1], tmp_path)
    assert resolve_model_path(str(path)) == path
    with pytest.raises(ModelLoadError, match=r"to run a GGUF file in it, give the file: .*tiny\.gguf"):
        resolve_model_path(str(tmp_path))
    with pytest.raises(ModelLoadError, match=r"There is no model directory at models/none\.gguf"):
        resolve_model_path("models/none.gguf")
