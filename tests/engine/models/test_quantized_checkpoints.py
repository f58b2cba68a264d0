"""Tests of quantized models: files in the real formats, run against transformers on the same weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, FineGrainedFP8Config, Mxfp4Config
from transformers.quantizers import quantizer_finegrained_fp8

from engine.config import ModelImpl
from engine.errors import ModelLoadError, UnsupportedModelError
from engine.loop.runner import load_model
from engine.models.config import CheckpointConfig, ModelConfig, load_model_config
from engine.quantized.floats import dequantize_fp8, dequantize_mxfp4
from engine.quantized.quantization import Quantization, QuantMethod, Scaled
from tests.engine.models.builders import build_family, check_run, engine_of_run
from tests.engine.models.families import QUANTIZED, RUNS, SMALLEST_LEAD, Quantized
from tests.engine.tiny_models import TinyModel, greedy

pytestmark = [pytest.mark.comparison, pytest.mark.long]

CPU = torch.device("cpu")
BLOCK = 128
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
PROMPTS = [[5, 17, 100, 44, 9, 23, 71], [150, 3, 3, 8], [60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71], [199]]

BY_NAME = {f"{row.quantization_config['quant_method']}-{row.family.model_type}": row for row in QUANTIZED}
PROVEN = [pytest.param(row, impl, id=f"{name}-{impl}") for name, row in BY_NAME.items() for impl in row.impls]
BY_TRANSFORMERS = [
    pytest.param(row, id=name)
    for name, row in BY_NAME.items()
    if "not whole" not in row.family.shows and row.scale_name == "_scale_inv"
]

Written = Callable[[Quantized], TinyModel]


def to_mxfp4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return blocks and scales of experts' weights `[experts, columns, rows]`, as gpt-oss has them."""
    groups = weight.float().transpose(1, 2).unflatten(2, (-1, 32))
    exponents = groups.abs().amax(-1).log2().floor() - 2
    scaled = groups / exponents.exp2()[..., None]
    nearest = (scaled.abs()[..., None] - FP4).abs().argmin(-1) + 8 * (scaled < 0)
    return (nearest[..., 0::2] + 16 * nearest[..., 1::2]).to(torch.uint8), (exponents + 127).to(torch.uint8)


def to_fp8(weight: Tensor, block: int | None) -> tuple[Tensor, Tensor]:
    """Return a weight `[rows, columns]` in FP8 and what its blocks are to be multiplied with."""
    if block is None:
        scale = weight.float().abs().max() / 448
        return (weight.float() / scale).to(torch.float8_e4m3fn), scale
    quantized, scales = torch.empty(weight.shape, dtype=torch.float8_e4m3fn), []
    for row in range(0, weight.shape[0], block):
        for column in range(0, weight.shape[1], block):
            part = weight[row : row + block, column : column + block].float()
            scales.append(part.abs().max() / 448)
            quantized[row : row + block, column : column + block] = (part / scales[-1]).to(torch.float8_e4m3fn)
    return quantized, torch.stack(scales).view(-(-weight.shape[0] // block), -1)


def times_scales(quantized: Tensor, scales: Tensor) -> Tensor:
    """Return the weight that FP8 stands for, value by value."""
    whole = quantized.float()
    for row in range(whole.shape[0]):
        for column in range(0, whole.shape[1], BLOCK):
            whole[row, column : column + BLOCK] *= scales[row // BLOCK, column // BLOCK] if scales.ndim else scales
    return whole


def quantize(path: Path, row: Quantized) -> dict[str, Tensor]:
    """Quantize the files of a model in their place; return the weights that they stand for now."""
    stored, whole, config = load_file(path / "model.safetensors"), {}, row.quantization_config
    for name, weight in list(stored.items()):
        is_expert = name.endswith(("experts.gate_up_proj", "experts.down_proj"))
        is_linear = weight.ndim == 2 and name.endswith(
            ("_proj.weight", "_mqa.weight", "w1.weight", "w2.weight", "w3.weight")
        )
        if config["quant_method"] == "mxfp4" and is_expert:
            del stored[name]
            stored[f"{name}_blocks"], stored[f"{name}_scales"] = to_mxfp4(weight)
        elif config["quant_method"] == "fp8" and is_linear:
            stored[name], scales = to_fp8(weight, BLOCK if config.get("weight_block_size") else None)
            stored[f"{name}{row.scale_name}"], whole[name] = scales, times_scales(stored[name], scales)
            if config["activation_scheme"] == "static":
                of_input = "activation_scale" if row.scale_name == "_scale_inv" else "input_scale"
                stored[name.replace("weight", of_input)] = torch.tensor(0.02)
    assert any(name.endswith(("_scales", row.scale_name)) for name in stored)
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, path / "model.safetensors")
    edit(path, quantization_config=config)
    return whole


def edit(path: Path, **changes: Any) -> Path:
    config = {**json.loads((path / "config.json").read_text()), **changes}
    (path / "config.json").write_text(json.dumps({name: value for name, value in config.items() if value is not ...}))
    return path


def edit_tensors(path: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")
    return path


def dequantized_by_transformers(path: Path) -> Any:
    """Load with transformers' own dequantization; bf16, which 5.17 makes of MXFP4 always, has every value of it."""
    is_mxfp4 = json.loads((path / "config.json").read_text())["quantization_config"]["quant_method"] == "mxfp4"
    return AutoModelForCausalLM.from_pretrained(
        path,
        dtype=torch.bfloat16 if is_mxfp4 else torch.float32,
        quantization_config=(Mxfp4Config if is_mxfp4 else FineGrainedFP8Config)(dequantize=True),
        attn_implementation="eager",
    ).float()


def as_expected(path: Path, model: Any) -> TinyModel | None:
    """Return what transformers generates, None where rounding might decide a token."""
    outputs = greedy(model, PROMPTS, [12] * len(PROMPTS))
    if min(min(leads) for _, leads in outputs) < SMALLEST_LEAD:
        return None
    return TinyModel(path, PROMPTS, [12] * len(PROMPTS), [tokens for tokens, _ in outputs])


@pytest.fixture(autouse=True)
def without_accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let transformers dequantize FP8 for our comparison: it asks for accelerate and then does without it."""
    monkeypatch.setattr(quantizer_finegrained_fp8, "is_accelerate_available", lambda: True)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Write a random quantized model, and have transformers generate with the weights that the files stand for."""

    def write(row: Quantized) -> TinyModel:
        for seed in range(20):
            model = build_family(row.family, seed=seed).to(torch.bfloat16)
            model.save_pretrained(tmp_path)
            whole = quantize(tmp_path, row)
            made = as_expected(tmp_path, whole_model(tmp_path, whole))
            if made is not None:
                return made
        raise AssertionError("every seed has a near-tie")

    return write


def whole_model(path: Path, whole: dict[str, Tensor]) -> Any:
    """Return transformers' model of FP8 weights that were multiplied here; MXFP4 is transformers' own business."""
    if not whole:
        return dequantized_by_transformers(path)
    stored = load_file(path / "model.safetensors")
    kept = {name: tensor for name, tensor in stored.items() if not name.endswith(("_scale_inv", "_scale"))}
    twin = path / "twin"
    twin.mkdir(exist_ok=True)
    (twin / "config.json").write_text((path / "config.json").read_text())
    edit(twin, quantization_config=...)
    save_file({**kept, **whole}, twin / "model.safetensors")
    return AutoModelForCausalLM.from_pretrained(twin, dtype=torch.float32, attn_implementation="eager")


@pytest.mark.parametrize(("row", "impl"), PROVEN)
def test_a_quantized_model_gives_the_tokens_that_transformers_gives_with_its_weights(
    row: Quantized, impl: str, written: Written
) -> None:
    check_run(written(row), RUNS[0], impl)


@pytest.mark.parametrize("row", BY_TRANSFORMERS)
def test_transformers_dequantizes_the_same_directory_to_the_same_tokens(row: Quantized, written: Written) -> None:
    model = written(row)
    expected = as_expected(model.path, dequantized_by_transformers(model.path))
    assert expected is not None
    assert expected.expected == model.expected
    check_run(expected, RUNS[0], "auto")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("row", "impl"), PROVEN)
def test_a_quantized_model_gives_the_tokens_of_transformers_on_a_gpu(
    row: Quantized, impl: str, written: Written
) -> None:
    check_run(written(row), RUNS[0], impl, device="cuda")


@pytest.mark.parametrize("row", QUANTIZED, ids=BY_NAME)
def test_every_weight_is_the_one_that_transformers_dequantizes_or_that_was_multiplied(
    row: Quantized, tmp_path: Path
) -> None:
    build_family(row.family, seed=0).to(torch.bfloat16).save_pretrained(tmp_path)
    expected = whole_model(tmp_path, quantize(tmp_path, row)).state_dict()
    config = load_model_config(str(tmp_path), impl=ModelImpl.TRANSFORMERS)
    with torch.inference_mode():
        model: Any = load_model(config, dtype=torch.float32, device=CPU, max_positions=32)
    got = model._model.state_dict()
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], expected[name]) for name in got)
    # What memory and work are reckoned from is the whole model, not its files.
    outside = model.sizes.num_head_weights * 2  # the head and the embedding
    assert model.sizes.num_layer_weights == sum(weight.numel() for weight in model._model.parameters()) - outside


def test_our_own_decoder_takes_fp8_by_itself_and_leaves_mxfp4_to_transformers(written: Written) -> None:
    config = load_model_config(str(written(BY_NAME["fp8-qwen3"]).path))
    assert isinstance(config, ModelConfig)
    scaled = Scaled(block=(128, 128), said_by="weight_block_size of config.json")
    assert config.quantization == Quantization(method=QuantMethod.FP8, stored=scaled)
    config = load_model_config(str(written(BY_NAME["mxfp4-gpt_oss"]).path))
    assert type(config) is CheckpointConfig
    assert config.quantization is not None
    assert config.quantization.method is QuantMethod.MXFP4
    with pytest.raises(UnsupportedModelError, match="'gpt_oss'; our own decoder covers llama"):
        load_model_config(str(config.path), impl=ModelImpl.TOKENMILL)


def test_code_that_comes_with_a_quantized_model_is_not_run(written: Written) -> None:
    model = written(BY_NAME["fp8-deepseek_v3"])
    edit(model.path, auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"})
    check_run(model, RUNS[0], "auto")


def test_a_quantized_model_that_names_no_dtype_is_made_of_16_bits(written: Written) -> None:
    path = edit(written(BY_NAME["mxfp4-gpt_oss"]).path, dtype=...)
    assert load_model_config(str(path)).dtype == "bfloat16"
    assert load_model_config(str(edit(path, dtype="float32"))).dtype == "float32"


def test_random_weights_need_no_more_than_the_config_of_a_quantized_model(written: Written) -> None:
    path = written(BY_NAME["fp8-qwen3_moe"]).path
    (path / "model.safetensors").unlink()
    config = load_model_config(str(path))
    with torch.inference_mode():
        model: Any = load_model(config, dtype=torch.bfloat16, device=CPU, max_positions=32, random_seed=3)
    assert {weight.dtype for weight in model._model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("quantization_config", "message"),
    [
        ({"quant_method": "awq", "bits": 4}, "group_size None for awq; it must be a positive number, or -1"),
        ({"quant_method": "compressed-tensors"}, "format None for compressed-tensors; the engine reads pack"),
        ({"quant_method": ["fp8"]}, r"quantized with \['fp8'\] .* reads fp8, .* and mxfp4 of gpt_oss"),
        ({"quant_method": None}, "quantized with None .* reads fp8, .* and mxfp4"),
        ({"load_in_4bit": True}, "without a quant_method; .* reads fp8, .* and mxfp4"),
        ({}, "{} without a quant_method"),
        ({"quant_method": "mxfp4"}, "a llama quantized with 'mxfp4'; .* mxfp4 of gpt_oss"),
        ("fp8", "'fp8' without a quant_method"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "weight_block_size 128 for fp8; it"),
        ({"quant_method": "fp8", "weight_block_size": [128, 0]}, r"weight_block_size \[128, 0\] for fp8; it"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128, 1]}, r"weight_block_size \[128, 128, 1\] for fp8; it"),
        ({"quant_method": "fp8", "weight_block_size": [128.0, True]}, r"weight_block_size \[128.0, True\] for fp8; it"),
    ],
)
@pytest.mark.parametrize("impl", ModelImpl)
def test_a_quantization_that_is_not_supported_is_refused_before_the_weights_load(
    *, quantization_config: Any, message: str, impl: ModelImpl, tmp_path: Path
) -> None:
    build_family(BY_NAME["fp8-llama"].family, seed=0).config.save_pretrained(tmp_path)
    edit(tmp_path, quantization_config=quantization_config)
    with pytest.raises(UnsupportedModelError, match=message):
        load_model_config(str(tmp_path), impl=impl)


def test_mxfp4_is_refused_where_the_experts_of_another_model_would_load_transposed(tmp_path: Path) -> None:
    build_family(BY_NAME["fp8-qwen3_moe"].family, seed=0).config.save_pretrained(tmp_path)
    edit(tmp_path, quantization_config={"quant_method": "mxfp4"}, hidden_size=64, moe_intermediate_size=64)
    with pytest.raises(UnsupportedModelError, match=r"a qwen3_moe quantized with 'mxfp4'; .* mxfp4 of gpt_oss"):
        load_model_config(str(tmp_path))


def test_no_quantization_is_none(tmp_path: Path) -> None:
    build_family(BY_NAME["fp8-llama"].family, seed=0).config.save_pretrained(tmp_path)
    assert load_model_config(str(edit(tmp_path, quantization_config=None))).quantization is None


@pytest.mark.parametrize("impl", ["tokenmill", "transformers"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensors, name: tensors.pop(f"{name}_scale_inv"),
            "float8_e4m3fn without scales; they are read from {name}_scale_inv or {name}_scale, and there is neither",
        ),
        (
            lambda tensors, name: tensors.update({f"{name}_qscale": tensors.pop(f"{name}_scale_inv")}),
            "without scales; they are read from {name}_scale_inv or {name}_scale, and there is only {name}_qscale",
        ),
        (
            lambda tensors, name: tensors.update({f"{name}_scale": tensors.pop(f"{name}_scale_inv")}),
            r"with scales that are float32 \[3, 2\]; fp8 with one scale a weight \({name}_scale has it, "
            r"{name}_scale_inv has those of blocks\) has scales of \[1, 1\]",
        ),
        (
            lambda tensors, name: tensors.update({f"{name}_scale_inv": torch.ones(2, 9)}),
            r"is float8_e4m3fn \[384, 256\] with scales that are float32 \[2, 9\]; fp8 with a scale for each block of "
            r"128 × 128 \(weight_block_size of config.json\) has scales of \[3, 2\]",
        ),
        (
            lambda tensors, name: tensors.update({f"{name}_scale_inv": torch.ones(3, 2).to(torch.uint8)}),
            r"scales that are uint8 \[3, 2\]",
        ),
        (lambda tensors, name: tensors.update({name: torch.ones(384, 256)}), r"is float32 \[384, 256\] with scales"),
        (lambda tensors, name: tensors.pop(name), "no tensor"),
    ],
)
def test_fp8_weights_that_do_not_fit_their_scales_are_named(
    *, change: Callable[[dict[str, Tensor], str], object], message: str, impl: str, written: Written
) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    path = edit_tensors(written(BY_NAME["fp8-qwen3"]).path, lambda tensors: change(tensors, name))
    message = message.replace("{name}", name)
    with pytest.raises(ModelLoadError, match=f"tensor {name}.*{message}|{message} {name}"):
        engine_of_run(path, RUNS[0], impl)


@pytest.mark.parametrize("impl", ["tokenmill", "transformers"])
def test_one_scale_where_blocks_are_only_assumed_is_refused_with_the_size_of_a_block(
    impl: str, written: Written
) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    path = edit(written(BY_NAME["fp8-qwen3"]).path, quantization_config={"quant_method": "fp8"})
    edit_tensors(path, lambda tensors: tensors.update({f"{name}_scale_inv": torch.tensor(0.5)}))
    message = (
        rf"{name} is .* with scales that are float32 \[\]; fp8 with a scale for each block of 128 × 128 "
        r"\(the default; config.json has no weight_block_size\) has scales of \[3, 2\]"
    )
    with pytest.raises(ModelLoadError, match=message):
        engine_of_run(path, RUNS[0], impl)


@pytest.mark.parametrize("scales", [torch.ones(1), torch.ones(2), torch.tensor(1.0)])
@pytest.mark.parametrize("block", [(BLOCK, BLOCK), None])
def test_an_fp8_weight_with_scales_needs_two_dimensions(scales: Tensor, block: tuple[int, int] | None) -> None:
    weight = torch.ones(128).to(torch.float8_e4m3fn)
    with pytest.raises(ModelLoadError, match=r"norm is float8_e4m3fn \[128\] with scales; .* two dimensions or more"):
        dequantize_fp8(weight, scales, "norm", scaled=Scaled(block=block, said_by="config.json"))


@pytest.mark.parametrize("impl", ["tokenmill", "transformers"])
def test_fp8_weights_that_config_json_does_not_mention_are_refused(impl: str, written: Written) -> None:
    path = edit(written(BY_NAME["fp8-qwen3"]).path, quantization_config=...)
    with pytest.raises(ModelLoadError, match=r"tensor model\.layers.* is float8_e4m3fn without scales"):
        engine_of_run(path, RUNS[0], impl)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors, name: tensors.pop(f"{name}_scales"), "no tensor {name}_scales"),
        (lambda tensors, name: tensors.pop(f"{name}_blocks"), "no tensor {name}"),
        (
            lambda tensors, name: tensors.update({f"{name}_scales": torch.ones(4, 64, 2, dtype=torch.uint8)}),
            r"tensor {name} has blocks that are uint8 \[4, 64, 3, 16\] and scales that are uint8 \[4, 64, 2\]",
        ),
    ],
)
def test_mxfp4_blocks_that_do_not_fit_their_scales_are_named(
    *, change: Callable[[dict[str, Tensor], str], object], message: str, written: Written
) -> None:
    name = "model.layers.1.mlp.experts.down_proj"
    path = edit_tensors(written(BY_NAME["mxfp4-gpt_oss"]).path, lambda tensors: change(tensors, name))
    with pytest.raises(ModelLoadError, match=message.replace("{name}", name)):
        engine_of_run(path, RUNS[0], "auto")


def test_every_value_of_mxfp4_is_kept_as_it_is() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    blocks = codes.view(1, 1, 16, 16).expand(1, 254, 16, 16).contiguous()
    scales = torch.arange(254, dtype=torch.uint8).view(1, 254, 1).expand(1, 254, 16).contiguous()
    whole = dequantize_mxfp4(blocks, scales, "weights")[0].T.double()
    signed = [*FP4.tolist(), *(-FP4).tolist()]
    pairs = [value for code in range(256) for value in (signed[code % 16], signed[code // 16])]
    for exponent in (0, 1, 100, 127, 140, 252):
        assert whole[exponent].tolist() == [value * 2.0 ** (exponent - 127) for value in pairs]


def test_experts_in_one_fp8_tensor_have_scales_each() -> None:
    weights = [torch.randn(130, 200, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    pairs = [to_fp8(weight, BLOCK) for weight in weights]
    quantized, scales = (torch.stack(parts) for parts in zip(*pairs, strict=True))
    whole = dequantize_fp8(quantized, scales, "weights", scaled=Scaled(block=(BLOCK, BLOCK), said_by="config.json"))
    expected = [times_scales(one, scale) for one, scale in zip(quantized, scales, strict=True)]
    assert torch.equal(whole, torch.stack(expected))
