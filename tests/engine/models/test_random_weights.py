"""Tests of weights from a seed: a directory with only config.json runs, reproducibly, and finite at any depth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.build import build_engine
from engine.config import EngineConfig, LoadFormat
from engine.errors import InvalidConfigError
from engine.models.random_weights import RandomWeights
from engine.params import SamplingParams
from lab.make_model import OPT_13B, OptShape, Shape, make_model, write_config
from tests.engine.builders import new_request
from tests.engine.tiny_shape import TINY_SHAPE

LLAMA = replace(TINY_SHAPE, tie_word_embeddings=False)
QWEN = replace(LLAMA, model_type="qwen3", head_dim=16)  # tied embeddings would repeat the prompt's end
OPT = replace(
    OPT_13B,
    hidden_size=32,
    word_embed_proj_dim=32,
    ffn_dim=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    vocab_size=128,
    max_position_embeddings=64,
)


def tokens(path: Path, seed: int) -> list[int]:
    engine = build_engine(
        EngineConfig(
            model=str(path),
            load_format=LoadFormat.RANDOM,
            dtype="float32",
            device="cpu",
            num_kv_blocks=16,
            num_threads=1,
            seed=seed,
        )
    )
    # The second token depends on the first through every layer; greedy, so that only the weights decide.
    engine.add(
        new_request(1, [5, 9, 33], params=SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=0))
    )
    found: list[int] = []
    while engine.has_work:
        for delta in engine.step():
            assert delta.error is None
            assert all(torch.isfinite(torch.tensor(entry.logprob)) for entry in delta.logprobs or [])
            found += delta.token_ids
    return found


@pytest.mark.parametrize("shape", [LLAMA, QWEN, OPT], ids=["llama", "qwen3", "opt-by-transformers"])
def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(tmp_path: Path, shape: Shape | OptShape) -> None:
    path = write_config(tmp_path, shape, dtype="float32")
    assert [file.name for file in path.iterdir()] == ["config.json"]
    first = tokens(path, seed=7)
    assert len(first) == 8
    assert tokens(path, seed=7) == first
    assert tokens(path, seed=8) != first


def test_a_deep_model_of_random_weights_stays_finite(tmp_path: Path) -> None:
    assert len(tokens(write_config(tmp_path, replace(LLAMA, num_hidden_layers=48), dtype="float32"), seed=0)) == 8


def test_a_tensor_depends_on_its_name_and_not_on_the_order() -> None:
    def weights() -> RandomWeights:
        return RandomWeights(3, dtype=torch.float32, device=torch.device("cpu"))

    one, other = weights(), weights()
    a, b = one.read("a.weight", (4, 6)), one.read("b.weight", (4, 6))
    assert torch.equal(other.read("b.weight", (4, 6)), b)
    assert torch.equal(other.read("a.weight", (4, 6)), a)
    assert not torch.equal(a, b)
    assert torch.equal(one.read("norm.weight", (3,)), torch.ones(3))
    assert torch.equal(one.read("q_proj.bias", (3,)), torch.zeros(3))


def test_an_unknown_load_format_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="load_format is 'dummy'; it must be one of safetensors, random"):
        EngineConfig(model="x", load_format="dummy")  # type: ignore[arg-type]


def test_making_weights_leaves_the_global_generator_alone(tmp_path: Path) -> None:
    path = write_config(tmp_path, OPT, dtype="float32")
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    tokens(path, seed=7)
    assert torch.equal(torch.rand(3), expected)


def test_a_written_qwen3_has_every_tensor_that_the_decoder_reads(tmp_path: Path) -> None:
    path = make_model(tmp_path, QWEN, seed=1, dtype="float32")
    engine = build_engine(EngineConfig(model=str(path), device="cpu", num_kv_blocks=16, num_threads=1))
    assert engine.info.vocab_size == QWEN.vocab_size
