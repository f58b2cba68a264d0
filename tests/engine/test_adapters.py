"""Tests of LoRA adapters: their tokens are those of the merged model, alone and among others in one batch."""

from __future__ import annotations

import json
import os
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine import LLM, InvalidRequestError, SamplingParams
from engine.models.adapters import store as adapter_store
from engine.models.adapters.files import read_adapter
from engine.models.config import load_model_config
from engine.outputs import RequestOutput
from tests.engine.models.lora import merge, write_adapter, write_files
from tests.engine.tiny_models import TinyModels, save_tiny

PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SETTINGS: dict[str, Any] = {"dtype": "float32", "num_kv_blocks": 96, "device": "cpu"}
SCALE = 2.0  # alpha 8 by rank 4


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("variant", ["llama-tied-biased", "mistral-window", "qwen3"])
def test_requests_of_several_adapters_get_the_tokens_of_merged_models(
    tiny_models: TinyModels, tmp_path: Path, variant: str
) -> None:
    model = tiny_models[variant]
    adapters: list[Path | None] = [
        None,
        write_adapter(tmp_path / "all", model.path, seed=1),
        write_adapter(tmp_path / "few", model.path, seed=2, modules=("k_proj", "up_proj", "o_proj")),
    ]
    merged = [
        model.path if each is None else merge(tmp_path / f"merged-{each.name}", model.path, each, scale=SCALE)
        for each in adapters
    ]
    prompts = model.prompts[:9]
    expected = [tokens(LLM(path, **SETTINGS).generate(prompts, PARAMS)) for path in merged]
    assert expected[0] != expected[1] != expected[2]
    own = [index for index, _ in zip(cycle(range(3)), prompts, strict=False)]
    found = LLM(model.path, **SETTINGS).generate(prompts, PARAMS, adapter=[adapters[index] for index in own])
    assert tokens(found) == [expected[index][number] for number, index in enumerate(own)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("base")
    save_tiny(path, {"model_type": "llama"})
    return path


@pytest.fixture(scope="module")
def llm(base: Path) -> LLM:
    return LLM(base, **SETTINGS)


def test_adapters_share_no_cached_prefixes(llm: LLM, base: Path, tmp_path: Path) -> None:
    adapters = [None, *(write_adapter(tmp_path / str(seed), base, seed=seed) for seed in (1, 2))]
    prompt = list(range(3, 73))
    cold = [llm.generate([prompt], PARAMS, adapter=each)[0] for each in adapters]
    warm = [llm.generate([prompt], PARAMS, adapter=each)[0] for each in adapters]
    assert [each.num_cached_tokens for each in cold] == [0, 0, 0]
    assert all(each.num_cached_tokens > 0 for each in warm)
    assert tokens(cold) == tokens(warm)


def test_the_bits_of_a_row_do_not_depend_on_the_adapters_beside_it(llm: LLM, base: Path, tmp_path: Path) -> None:
    adapters = [None, *(write_adapter(tmp_path / str(seed), base, seed=seed) for seed in (3, 4))]
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=2)
    prompts = [[5 + seed, 9, 11, 200] for seed in range(9)]
    own = [adapters[index % 3] for index in range(9)]
    together = llm.generate(prompts, params, adapter=own)
    for prompt, adapter, beside in zip(prompts, own, together, strict=True):
        (alone,) = llm.generate([prompt], params, adapter=adapter)
        assert alone.outputs[0].logprobs == beside.outputs[0].logprobs


def test_a_folder_that_has_changed_is_read_anew(llm: LLM, base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    prompt = list(range(3, 40))
    answers: list[list[list[int]]] = []
    for seed in (1, 2, 1):
        write_adapter(folder, base, seed=seed)
        os.utime(folder / "adapter_config.json", ns=(seed, len(answers)))
        answers.append(tokens(llm.generate([prompt], PARAMS, adapter=folder)))
    assert answers[0] == answers[2] != answers[1]


def test_a_folder_that_is_replaced_while_it_is_read_is_not_used(
    llm: LLM, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_adapter(tmp_path, base, seed=1)
    first = read_adapter

    def replaced(folder: Path, model: Any) -> Any:
        files = first(folder, model)
        write_adapter(folder, base, seed=2)
        return files

    monkeypatch.setattr(adapter_store, "read_adapter", replaced)
    (refused,) = llm.generate([[5, 6, 7]], PARAMS, adapter=tmp_path)
    assert refused.outputs[0].finish_reason == "error"


def test_few_adapters_stay_in_memory(llm: LLM, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_store, "MOST_KEPT", 2)
    folders = [write_adapter(tmp_path / str(seed), base, seed=seed, modules=("q_proj",)) for seed in range(5)]
    together = tokens(llm.generate([[7, 8, 9]] * 5, PARAMS, adapter=folders))
    assert together == [tokens(llm.generate([[7, 8, 9]], PARAMS, adapter=each))[0] for each in folders]
    assert len(llm.engine._runner._adapters._kept) == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_dtypes_run(base: Path, tmp_path: Path, dtype: str) -> None:
    llm = LLM(base, **{**SETTINGS, "dtype": dtype})
    adapter = write_adapter(tmp_path / "adapter", base, seed=1)
    plain, changed = llm.generate([[5, 6, 7]] * 2, PARAMS, adapter=[None, adapter])
    assert plain.outputs[0].token_ids != changed.outputs[0].token_ids


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, SCALE),
        ({"use_rslora": True}, 4.0),
        ({"alpha_pattern": {"q_proj": 3}}, 0.75),
        ({"alpha_pattern": {r"layers\.1\..*": 3}}, SCALE),
        ({"alpha_pattern": {"model.layers.0.self_attn.q_proj": 64}}, 16.0),
        ({"alpha_pattern": {"^model.layers.0.self_attn.q_proj": 64, "q_proj": 8}}, 16.0),
        ({"alpha_pattern": {"q_proj": 8, "layers.0.self_attn.q_proj": 64}}, 2.0),
        ({"init_lora_weights": "gaussian"}, SCALE),
    ],
)
def test_the_scale_is_that_of_the_configuration(
    base: Path, tmp_path: Path, config: dict[str, Any], scale: float
) -> None:
    files = read_adapter(write_adapter(tmp_path, base, seed=1, **config), load_model_config(str(base)))
    assert files.changes["layers.0.self_attn.q_proj"].scale == scale
    assert len(files.changes) == 7 * 3


FACTOR = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
WRONG: dict[str, tuple[dict[str, Any], dict[str, torch.Tensor | None]]] = {
    "dora": ({"use_dora": True}, {}),
    "another kind": ({"peft_type": "IA3"}, {}),
    "whole weights": ({"modules_to_save": ["lm_head"]}, {}),
    "biases": ({"bias": "all"}, {}),
    "alpha": ({"lora_alpha": "8"}, {}),
    "a large alpha": ({"lora_alpha": 10**400}, {}),
    "a wrong pattern": ({"alpha_pattern": {"*.q_proj": 8}}, {}),
    "no pattern": ({"alpha_pattern": ["q_proj"]}, {}),
    "weights taken out of the model": ({"init_lora_weights": "pissa_niter_4"}, {}),
    "from certain tokens on": ({"alora_invocation_tokens": [1, 2]}, {}),
    "no numbers": ({}, {FACTOR: torch.full((4, 48), torch.nan)}),
    "alpha not a number": ({"lora_alpha": True}, {}),
    "an embedding": ({}, {"base_model.model.model.embed_tokens.lora_embedding_A": torch.zeros(4, 8)}),
    "another weight": ({}, {FACTOR.replace("q_proj", "x_proj"): torch.zeros(4, 48)}),
    "a layer too many": ({}, {FACTOR.replace("layers.0", "layers.9"): torch.zeros(4, 48)}),
    "one factor": ({}, {FACTOR: None}),
    "another width": ({}, {FACTOR: torch.zeros(4, 7)}),
    "another rank": ({}, {FACTOR: torch.zeros(3, 48)}),
    "no matrix": ({}, {FACTOR: torch.zeros(4)}),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_cannot_be_run_is_refused_and_costs_no_other_request(
    llm: LLM, base: Path, tmp_path: Path, kind: str
) -> None:
    config, others = WRONG[kind]
    write_adapter(tmp_path, base, seed=1, modules=("q_proj",))
    tensors = {**load_file(tmp_path / "adapter_model.safetensors"), **others}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    write_files(tmp_path, kept, **{"lora_alpha": 8, **config})
    refused, plain = llm.generate([[5, 6, 7]] * 2, PARAMS, adapter=[tmp_path, None])
    assert refused.outputs[0].finish_reason == "error"
    assert str(tmp_path) in (refused.outputs[0].error or "")
    assert len(plain.outputs[0].token_ids) == 12


@pytest.mark.parametrize("missing", ["folder", "adapter_config.json", "adapter_model.safetensors", "JSON", "tensors"])
def test_files_that_are_missing_or_broken_are_named(llm: LLM, base: Path, tmp_path: Path, missing: str) -> None:
    folder = write_adapter(tmp_path / "adapter", base, seed=1)
    if missing == "folder":
        folder = tmp_path / "nowhere"
    elif missing == "JSON":
        (folder / "adapter_config.json").write_text("{")
    elif missing == "tensors":
        (folder / "adapter_model.safetensors").write_bytes(b"\x00" * 20)
    else:
        (folder / missing).unlink()
    (refused,) = llm.generate([[5, 6, 7]], PARAMS, adapter=folder)
    assert refused.outputs[0].finish_reason == "error"
    assert str(folder) in (refused.outputs[0].error or "")


def test_models_of_transformers_code_take_none(base: Path, tmp_path: Path) -> None:
    llm = LLM(base, model_impl="transformers", **SETTINGS)
    folder = write_adapter(tmp_path, base, seed=1)
    assert llm.generate([[5, 6, 7]], PARAMS, adapter=folder)[0].outputs[0].finish_reason == "error"


def test_another_number_of_adapters_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError):
        llm.generate([[5], [6]], PARAMS, adapter=["a"])


def test_the_configuration_may_be_empty_but_for_its_kind(base: Path, tmp_path: Path) -> None:
    write_adapter(tmp_path, base, seed=1)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    files = read_adapter(tmp_path, load_model_config(str(base)))
    assert files.changes["layers.2.mlp.down_proj"].scale == 2.0, "PEFT's alpha is 8, and the rank 4"
