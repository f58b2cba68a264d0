"""Tests of models in each format of safetensors: the tokens of their weights, and what stays packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.config import ModelImpl
from engine.errors import ModelLoadError, UnsupportedModelError
from engine.loop.runner import load_model
from engine.models import layer_weights
from engine.models.config import ModelConfig, load_model_config
from engine.models.decoder import Decoder
from kernels.grouped_linear import GroupedLinear
from kernels.packed_linear import PackedLinear, Product, can_multiply
from tests.engine.models.builders import build_family, check_run, engine_of_run
from tests.engine.models.families import RUNS, SMALLEST_LEAD, Family
from tests.engine.models.layer_runs import cache_of, run
from tests.engine.quantized.checkpoints import FORMATS, Format, quantize
from tests.engine.tiny_models import TinyModel, greedy

pytestmark = pytest.mark.comparison

PROMPTS = [[5, 17, 100, 44, 9, 23, 71], [150, 3, 3, 8], [60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71], [199]]
LIMITS = [8] * len(PROMPTS)
LLAMA = Family(model_type="llama", models="", settings={"hidden_size": 128, "intermediate_size": 192, "head_dim": 32})
MIXTURE = Family(
    model_type="qwen3_moe",
    models="",
    settings={
        "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 64, "head_dim": 16, "num_experts": 4,
        "num_experts_per_tok": 2,
    },
)  # fmt: skip

STAYS_PACKED = can_multiply(Product.INT8, torch.bfloat16)

each_format = pytest.mark.parametrize("stored_as", FORMATS.values(), ids=FORMATS)


def written(path: Path, stored_as: Format, family: Family = LLAMA) -> TinyModel:
    """Write a quantized model, and have transformers generate with the weights that the files stand for."""
    for seed in range(20):
        build_family(family, seed=seed).to(torch.bfloat16).save_pretrained(path)
        outputs = greedy(quantize(path, stored_as), PROMPTS, LIMITS)
        if min(min(leads) for _, leads in outputs) >= SMALLEST_LEAD:
            return TinyModel(path, PROMPTS, LIMITS, [tokens for tokens, _ in outputs])
    raise AssertionError("every seed has a near-tie")


def decoder_of(path: Path, dtype: torch.dtype) -> Decoder:
    config = load_model_config(str(path))
    assert isinstance(config, ModelConfig)
    return Decoder(config, dtype=dtype, device=torch.device("cpu"), max_positions=64)


def results_of(decoder: Decoder) -> Tensor:
    """Return the last layer's results, the logits and the caches of a step, as bytes."""
    results = run(decoder, cache_of(decoder, decoder.dtype), at_once=True)
    return torch.cat([tensor.flatten().view(torch.uint8) for tensor in results])


@each_format
def test_a_model_gives_the_tokens_that_transformers_gives_with_its_weights(stored_as: Format, tmp_path: Path) -> None:
    check_run(written(tmp_path, stored_as), RUNS[0], "tokenmill")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each_format
def test_a_model_gives_those_tokens_on_a_gpu(stored_as: Format, tmp_path: Path) -> None:
    check_run(written(tmp_path, stored_as), RUNS[0], "tokenmill", device="cuda")


@pytest.mark.parametrize("name", ["gptq-4", "w8a8"])
def test_experts_are_read_through_transformers(name: str, tmp_path: Path) -> None:
    check_run(written(tmp_path, FORMATS[name], MIXTURE), RUNS[0], "auto")


@pytest.mark.skipif(not STAYS_PACKED, reason="this CPU keeps no weight packed")
@pytest.mark.parametrize(("name", "dtype"), [("awq", torch.bfloat16), ("w8a8", torch.float32)])
def test_a_packed_model_has_the_bits_of_the_widened_one(
    name: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_family(LLAMA, seed=0).to(torch.bfloat16).save_pretrained(tmp_path)
    quantize(tmp_path, FORMATS[name])
    packed = decoder_of(tmp_path, dtype)
    monkeypatch.setattr(layer_weights, "stays_packed", lambda *_: False)
    whole = decoder_of(tmp_path, dtype)
    assert {type(linear) for layer in whole._layers for linear in layer.linears} == {PackedLinear}
    assert torch.equal(results_of(packed), results_of(whole))


@pytest.mark.skipif(not STAYS_PACKED, reason="this CPU keeps no weight packed")
@each_format
def test_projections_stay_packed_if_their_format_has_a_layout(stored_as: Format, tmp_path: Path) -> None:
    build_family(LLAMA, seed=0).to(torch.bfloat16).save_pretrained(tmp_path)
    quantize(tmp_path, stored_as)
    decoder = decoder_of(tmp_path, torch.float32)
    kinds = {type(linear) for layer in decoder._layers for linear in layer.linears}
    assert kinds == {GroupedLinear if stored_as.is_packed else PackedLinear}


@each_format
def test_every_weight_is_the_one_that_the_files_stand_for(stored_as: Format, tmp_path: Path) -> None:
    build_family(LLAMA, seed=0).to(torch.bfloat16).save_pretrained(tmp_path)
    expected = quantize(tmp_path, stored_as).state_dict()
    config = load_model_config(str(tmp_path), impl=ModelImpl.TRANSFORMERS)
    with torch.inference_mode():
        model: Any = load_model(config, dtype=torch.float32, device=torch.device("cpu"), max_positions=32)
    actual = model._model.state_dict()
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], expected[name]) for name in actual)


@pytest.mark.parametrize("impl", ["tokenmill", "transformers"])
def test_files_of_a_weight_that_lack_its_scales_are_named(impl: str, tmp_path: Path) -> None:
    build_family(LLAMA, seed=0).save_pretrained(tmp_path)
    quantize(tmp_path, FORMATS["gptq-4"])
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.scales"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"no tensor model\.layers\.1\.mlp\.up_proj\.scales"):
        engine_of_run(tmp_path, RUNS[0], impl)


def test_a_weight_of_bytes_without_scales_is_named_with_where_they_are_read(tmp_path: Path) -> None:
    build_family(LLAMA, seed=0).save_pretrained(tmp_path)
    quantize(tmp_path, FORMATS["w8a8"])
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    del tensors[f"{name}_scale"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match=f"{name} is int8 without scales; they are read from {name}_scale"):
        engine_of_run(tmp_path, RUNS[0], "tokenmill")


@pytest.mark.parametrize("impl", ["tokenmill", "transformers"])
def test_scales_of_activations_are_refused_by_name(impl: str, tmp_path: Path) -> None:
    build_family(LLAMA, seed=0).save_pretrained(tmp_path)
    quantize(tmp_path, FORMATS["awq"])
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.act.scales"
    save_file({**tensors, name: torch.ones(192)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnsupportedModelError, match=rf"{name} scales activations .* gptq or compressed-tensors"):
        engine_of_run(tmp_path, RUNS[0], impl)


def test_a_weight_of_another_shape_than_the_model_is_refused(tmp_path: Path) -> None:
    build_family(LLAMA, seed=0).save_pretrained(tmp_path)
    quantize(tmp_path, FORMATS["awq"])
    tensors = load_file(tmp_path / "model.safetensors")
    for part in ("qweight", "qzeros", "scales"):
        tensors[f"model.layers.1.mlp.up_proj.{part}"] = tensors[f"model.layers.1.self_attn.q_proj.{part}"].clone()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"up_proj\.weight has shape \(128, 128\), config\.json says \(192, 128\)"):
        engine_of_run(tmp_path, RUNS[0], "tokenmill")


def test_a_cut_file_is_named(tmp_path: Path) -> None:
    build_family(LLAMA, seed=0).save_pretrained(tmp_path)
    quantize(tmp_path, FORMATS["awq"])
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-64])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors cannot be read as safetensors"):
        engine_of_run(tmp_path, RUNS[0], "tokenmill")
