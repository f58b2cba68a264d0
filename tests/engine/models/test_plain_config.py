"""Tests that a plain config.json is read as by transformers, and any other is left to transformers."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

from engine.config import ModelImpl
from engine.models import config as reading
from engine.models.config import ModelConfig, load_model_config
from engine.models.families import FAMILIES
from engine.models.plain_config import PlainConfig, read_plain
from tests.engine.models.families import OWN

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = {"llama": "LlamaConfig", "mistral": "MistralConfig", "qwen2": "Qwen2Config", "qwen3": "Qwen3Config"}
VERSION_4: dict[str, dict[str, Any]] = {
    "llama": {"mlp_bias": False, "attention_bias": False, "pretraining_tp": 1, "head_dim": None},
    "mistral": {"sliding_window": 4096, "head_dim": 24},
    "qwen2": {"use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 21},
    "qwen3": {"use_sliding_window": False, "sliding_window": None, "max_window_layers": 36, "head_dim": 32}
    | {"attention_bias": True},
}


def version_4(family: str) -> dict[str, Any]:
    """Return a config.json as transformers 4 wrote it, and as the hub is full of."""
    return {
        "_name_or_path": "somebody/something",
        "architectures": [FAMILIES[family].architecture],
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": [2, 7],
        "hidden_act": "silu",
        "hidden_size": 96,
        "initializer_range": 0.02,
        "intermediate_size": 160,
        "max_position_embeddings": 2048,
        "model_type": family,
        "num_attention_heads": 6,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0",
        "use_cache": True,
        "vocab_size": 512,
    } | VERSION_4[family]


def read_both(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModelConfig, ModelConfig]:
    """Return what is read of a folder, and what is read where transformers reads all of it."""
    ours = load_model_config(str(path))
    with monkeypatch.context() as patched:
        patched.setattr(reading, "read_plain", lambda raw: None)
        theirs = load_model_config(str(path))
    assert isinstance(ours, ModelConfig)
    assert isinstance(theirs, ModelConfig)
    return ours, theirs


def assert_alike(ours: ModelConfig, theirs: ModelConfig) -> None:
    assert isinstance(ours.source, PlainConfig)
    assert not isinstance(theirs.source, PlainConfig)
    assert dataclasses.replace(ours, source=None) == dataclasses.replace(theirs, source=None)
    for field in dataclasses.fields(PlainConfig):
        if hasattr(theirs.source, field.name) and field.name not in ("dtype", "layer_types"):
            assert getattr(ours.source, field.name) == getattr(theirs.source, field.name), field.name


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_writes_is_plain_and_read_alike(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = getattr(transformers, CONFIGS[family])(
        architectures=[FAMILIES[family].architecture], dtype="float16", eos_token_id=2, num_hidden_layers=3
    )
    config.save_pretrained(tmp_path)
    assert_alike(*read_both(tmp_path, monkeypatch))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_version_4_wrote_is_plain_and_read_alike(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(version_4(family)))
    assert_alike(*read_both(tmp_path, monkeypatch))


@pytest.mark.parametrize("family", OWN, ids=lambda family: f"{family.model_type} {family.shows}")
def test_every_proven_model_is_read_alike(family: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = version_4(family.model_type) | {"model_type": family.model_type, **family.settings}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    ours, theirs = read_both(tmp_path, monkeypatch)
    assert dataclasses.replace(ours, source=None) == dataclasses.replace(theirs, source=None)


@pytest.mark.parametrize(
    "change",
    [
        {"something_new": 1},
        {"hidden_act": "gelu"},
        {"hidden_size": 96.0},
        {"hidden_size": 97},
        {"head_dim": 7},
        {"num_hidden_layers": True},
        {"num_hidden_layers": -1},
        {"rms_norm_eps": "1e-5"},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        {"rope_theta": None},
        {"pad_token_id": -1},
        {"eos_token_id": 512},
        {"eos_token_id": "2"},
        {"architectures": ["LlamaForSequenceClassification"]},
        {"quantization_config": {"quant_method": "fp8"}},
        {"auto_map": {"AutoConfig": "mine.Config"}},
        {"model_type": "gemma"},
        {"layer_types": ["full_attention"] * 3},
    ],
    ids=str,
)
def test_what_is_not_plain_is_left_to_transformers(change: dict[str, Any]) -> None:
    assert read_plain(version_4("llama")) is not None
    assert read_plain(version_4("llama") | change) is None


@pytest.mark.parametrize("name", ["vocab_size", "num_key_value_heads", "eos_token_id", "rope_theta", "hidden_act"])
def test_defaults_are_transformers_own(name: str) -> None:
    raw = version_4("llama")
    del raw[name]
    assert read_plain(raw) is None


def test_windows_are_read_by_transformers_but_for_mistrals() -> None:
    for family in ("qwen2", "qwen3"):
        assert read_plain(version_4(family) | {"use_sliding_window": True}) is None
        layers = ["full_attention", "sliding_attention", "full_attention"]
        assert read_plain(version_4(family) | {"layer_types": layers}) is None
    found = read_plain(version_4("mistral"))
    assert found is not None
    assert found.sliding_window == 4096
    assert read_plain(version_4("mistral") | {"layer_types": ["full_attention"] * 3}) is None


def test_transformers_runs_what_it_reads_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(version_4("llama")))
    config = load_model_config(str(tmp_path), impl=ModelImpl.TRANSFORMERS)
    assert isinstance(config.source, transformers.LlamaConfig)


def test_a_plain_configuration_costs_no_torch() -> None:
    code = (
        "import sys; from engine.models.config import load_model_config; load_model_config('examples/demo_model');"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
