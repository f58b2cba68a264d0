"""Tests of model directories for measurements: every engine can read them, with weights of a seed or of a GGUF file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engine.models.config import ModelConfig, load_model_config
from lab.make_model import SHAPES, main, make_model, write_config
from lab.make_workload import LIKE
from tests.engine.builders import make_engine, run_all
from tests.engine.gguf.conversion import save, written_as_gguf
from tests.engine.tiny_models import TinyModel, certain_answers, save_tiny

PROMPTS = [[5, 17, 44, 9], [50, 3, 3, 8, 21, 60, 61, 62, 63]]


@pytest.mark.parametrize(
    ("name", "millions", "heads", "head_dim"),
    [("S", 135, (9, 3), 64), ("T", 7, (8, 4), 32), ("M", 352, (16, 8), 64), ("Q", 491, (16, 8), 128)],
)
def test_a_shape_of_the_comparison_has_its_size_and_holds_every_named_workload(
    name: str, millions: int, heads: tuple[int, int], head_dim: int, tmp_path: Path
) -> None:
    config = load_model_config(str(write_config(tmp_path, SHAPES[name])))
    assert isinstance(config, ModelConfig), "our own decoder runs it"
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (*heads, head_dim)
    assert config.has_qk_norm == (name == "Q")
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    assert round(model.num_parameters() / 1e6) == millions
    longest = max(like.prefix_tokens + like.prompt_tokens[1] + like.output_tokens[1] for like in LIKE.values())
    assert config.max_model_len is not None
    assert longest <= config.max_model_len


@pytest.mark.parametrize("name", ["M", "Q"])
def test_a_made_model_has_the_weights_that_transformers_looks_for(name: str, tmp_path: Path) -> None:
    shape = replace(SHAPES[name], num_hidden_layers=1, vocab_size=64, intermediate_size=32)
    path = make_model(tmp_path, shape, seed=1, dtype="float32")
    model, report = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True, attn_implementation="eager")
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    model.generation_config.eos_token_id = None
    answers = certain_answers(model.eval(), PROMPTS, [8] * len(PROMPTS))
    asked = TinyModel(path, PROMPTS, [len(answer) for answer in answers], answers)
    assert run_all(make_engine(asked), asked) == answers


def test_the_model_of_a_gguf_file_becomes_a_folder_in_bf16(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_tiny(tmp_path / "original", {"model_type": "qwen3", "head_dim": 16, "dtype": "bfloat16"})
    file = save(written_as_gguf(model), tmp_path)
    assert main([str(tmp_path / "folder"), "--weights", str(file)]) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    made: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name, weight in model.state_dict().items():
        assert torch.equal(made.state_dict()[name], weight.bfloat16().float()), name
    assert main([str(tmp_path / "none"), "--weights", str(tmp_path / "none.gguf")]) == 1
    assert "error: " in capsys.readouterr().err
