"""Tests of vision models with only text: their language part gives the tokens of transformers' whole model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText

from engine.config import ModelImpl
from engine.models.config import ModelConfig, load_model_config
from tests.engine.models.builders import check_run, generate_with_lead
from tests.engine.models.families import RUNS, SMALLEST_LEAD, TINY
from tests.engine.tiny_models import TinyModel

pytestmark = pytest.mark.comparison

_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_QWEN_SEES = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 64}
_PIXTRAL = {"model_type": "pixtral", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
            "intermediate_size": 32, "head_dim": 16}  # fmt: skip

TEXTS: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {"rope_parameters": {**_ROPE, "mrope_section": [2, 3, 3]}},
    "qwen3_vl": {"head_dim": 16, "rope_parameters": {**_ROPE, "mrope_section": [4, 2, 2], "mrope_interleaved": True}},
    "mistral3": {"model_type": "mistral", "head_dim": 16, "sliding_window": None, "rope_parameters": _ROPE},
}
SEES: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {**_QWEN_SEES, "fullatt_block_indexes": [0]},
    "qwen3_vl": {**_QWEN_SEES, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
    "mistral3": _PIXTRAL,
}
PROMPTS = [[11, 23, 45, 67, 89, 101, 150], [20 + 3 * index for index in range(26)], [9]]
MAX_TOKENS = [12, 12, 12]


def make(model_type: str, path: Path, **settings: Any) -> TinyModel:
    """Save a random model whose best token leads at every step, with what transformers generates for text."""
    config = AutoConfig.for_model(
        model_type, text_config={**TINY, **TEXTS[model_type]}, vision_config=SEES[model_type], image_token_id=5,
        image_token_index=5, video_token_id=6, vision_start_token_id=7, vision_end_token_id=8, **settings,
    )  # fmt: skip
    for seed in range(20):
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval()
        outputs = [generate_with_lead(model, prompt, limit) for prompt, limit in zip(PROMPTS, MAX_TOKENS, strict=True)]
        if all(lead >= SMALLEST_LEAD for _, lead in outputs):
            model.save_pretrained(path)
            return TinyModel(path, PROMPTS, MAX_TOKENS, [tokens for tokens, _ in outputs])
    raise AssertionError(f"{model_type}: every seed has a near-tie")


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("model_type", sorted(TEXTS))
def test_text_gives_the_tokens_of_the_whole_model(*, model_type: str, is_tied: bool, tmp_path: Path) -> None:
    model = make(model_type, tmp_path, tie_word_embeddings=is_tied)
    assert isinstance(load_model_config(str(tmp_path)), ModelConfig), "our own decoder runs it"
    for run in RUNS[:2]:
        check_run(model, run, "auto")
    check_run(model, RUNS[1], "transformers")


@pytest.mark.parametrize(
    ("model_type", "old", "new"),
    [
        ("qwen2_5_vl", "model.", "model.language_model."),
        ("qwen3_vl", "model.language_model.", "model."),
        ("mistral3", "language_model.model.", "model.language_model."),
    ],
)
def test_each_way_that_releases_of_transformers_name_the_tensors_is_read(
    model_type: str, old: str, new: str, tmp_path: Path
) -> None:
    model = make(model_type, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    renamed = {new + name.removeprefix(old) if name.startswith(old) else name: one for name, one in tensors.items()}
    assert renamed.keys() != tensors.keys()
    save_file(renamed, file, metadata={"format": "pt"})
    check_run(model, RUNS[0], "auto")


def test_the_language_part_keeps_what_the_whole_says_of_its_dtype_and_its_end(tmp_path: Path) -> None:
    make("qwen2_5_vl", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 3]}))
    for impl in ModelImpl:
        found = load_model_config(str(tmp_path), impl=impl)
        assert (found.dtype, found.eos_token_ids, found.max_model_len) == ("bfloat16", (2, 3), 128)
