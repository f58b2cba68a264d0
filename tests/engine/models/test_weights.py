"""Tests of the files that are read of a model's directory, and of errors for unreadable ones."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from engine.config import ModelImpl
from engine.errors import ModelLoadError
from engine.loop.runner import load_model
from engine.models.config import load_model_config
from engine.models.weights import Checkpoint
from tests.engine.builders import make_engine, run_all
from tests.engine.tiny_models import TinyModel, overwrite_weights, save_tiny

INDEX = "model.safetensors.index.json"
NAME = "model.layers.1.self_attn.o_proj.weight"

both = pytest.mark.parametrize("impl", ["tokenmill", "transformers"])


def sharded(path: Path, **settings: Any) -> dict[str, str]:
    """Save a tiny Llama in several files; return which tensor is in which."""
    save_tiny(path, {"model_type": "llama", **settings}, max_shard_size="100KB")
    weight_map: dict[str, str] = json.loads((path / INDEX).read_text())["weight_map"]
    assert len(set(weight_map.values())) > 1
    return weight_map


def write_index(path: Path, weight_map: Any) -> None:
    (path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def load(path: Path, impl: str) -> Any:
    config = load_model_config(str(path), impl=ModelImpl(impl))
    with torch.inference_mode():
        return load_model(config, dtype=torch.float32, device=torch.device("cpu"), max_positions=32)


def read(path: Path, name: str) -> torch.Tensor:
    with Checkpoint(path, dtype=torch.float32) as checkpoint:
        return checkpoint.whole(name)


@pytest.mark.parametrize(("config", "count"), [({"quant_method": "fp8"}, 1), (None, 0)])
def test_fp8_that_only_the_config_tells_of_is_loaded_with_a_warning(
    config: dict[str, str] | None, count: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_tiny(tmp_path, {"model_type": "llama"})
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**raw, "quantization_config": config} if config else raw))
    load(tmp_path, "tokenmill")
    assert [record.getMessage().count("has fp8") for record in caplog.records if record.name.startswith("engine")] == (
        [1] * count
    )


@both
def test_a_single_file_goes_before_an_index_as_in_transformers(tmp_path: Path, impl: str) -> None:
    files = set(sharded(tmp_path).values())
    tensors = {name: tensor for file in files for name, tensor in load_file(tmp_path / file).items()}
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, tmp_path / "model.safetensors", {"format": "pt"})
    expected = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()["model.norm.weight"]
    assert torch.equal(expected, tensors["model.norm.weight"] + 1)
    model = load(tmp_path, impl)
    got = model._norm if impl == "tokenmill" else model._model.model.norm.weight
    assert torch.equal(got, expected)


@both
def test_a_head_that_only_the_index_of_a_tied_model_names_is_not_asked_for(tmp_path: Path, impl: str) -> None:
    weight_map = sharded(tmp_path, tie_word_embeddings=True)
    assert "lm_head.weight" not in weight_map
    write_index(tmp_path, {**weight_map, "lm_head.weight": weight_map["model.norm.weight"]})
    load(tmp_path, impl)


@both
def test_a_tensor_that_the_index_lacks_is_found_in_its_file(tmp_path: Path, impl: str) -> None:
    weight_map = sharded(tmp_path)
    write_index(tmp_path, {name: file for name, file in weight_map.items() if name != NAME})
    assert weight_map[NAME] in {file for name, file in weight_map.items() if name != NAME}
    load(tmp_path, impl)


@both
def test_a_tensor_that_only_the_index_has_is_missing(tmp_path: Path, impl: str) -> None:
    file = tmp_path / sharded(tmp_path)[NAME]
    tensors = load_file(file)
    save_file({name: tensor for name, tensor in tensors.items() if name != NAME} | {"x": torch.ones(1)}, file)
    with pytest.raises(ModelLoadError, match=f"{tmp_path} has no tensor {NAME}"):
        load(tmp_path, impl)


@both
@pytest.mark.parametrize("is_tied", [True, False])
def test_what_is_written_over_the_file_of_a_loaded_model_changes_nothing(
    tmp_path: Path, impl: str, is_tied: bool
) -> None:
    save_tiny(tmp_path, {"model_type": "llama", "tie_word_embeddings": is_tied, "attention_bias": True})
    model = TinyModel(tmp_path, [[5, 6, 7]], [8], [])
    engine = make_engine(model, model_impl=impl)
    expected = run_all(engine, model, ignore_eos=True)
    overwrite_weights(tmp_path)
    assert run_all(engine, model, ignore_eos=True) == expected


def test_a_file_that_the_index_names_and_nobody_copied_is_named(tmp_path: Path) -> None:
    file = tmp_path / sharded(tmp_path)[NAME]
    file.unlink()
    with pytest.raises(ModelLoadError, match=f"{file} is missing, though {INDEX} names it"):
        read(tmp_path, NAME)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "\udcff"])
def test_an_index_without_a_map_of_names_to_files_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text, errors="surrogateescape")
    with pytest.raises(ModelLoadError, match=f"{INDEX} has no readable weight_map"):
        read(tmp_path, NAME)


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    save_tiny(tmp_path, {"model_type": "llama"})
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelLoadError, match=f"{file} cannot be read as safetensors: .*not fully covered"):
        read(tmp_path, NAME)


@both
def test_a_tensor_that_cannot_be_read_is_named_with_its_file(tmp_path: Path, impl: str) -> None:
    save_tiny(tmp_path, {"model_type": "llama"})
    file = tmp_path / "model.safetensors"
    rename_dtype(file, NAME, "F6_E2M3")
    with pytest.raises(ModelLoadError, match=f"{file}: tensor {NAME} cannot be read: .*F6_E2M3"):
        load(tmp_path, impl)


def rename_dtype(file: Path, name: str, dtype: str) -> None:
    """Say in the header of a safetensors file that a tensor of 32 bits a value has one of 6, and as many bytes."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    begin, end = header[name]["data_offsets"]
    header[name] |= {"dtype": dtype, "shape": [(end - begin) * 8 // 6]}
    assert (end - begin) % 3 == 0
    written = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(written)) + written + content[8 + length :])
