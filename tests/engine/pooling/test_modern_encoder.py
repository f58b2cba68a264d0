"""Tests of ModernBERT: transformers' vectors for random configurations, with windows shorter and longer than texts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Embedder
from engine.errors import UnsupportedModelError
from tests.engine.pooling.builders import WORDS, make_folder

pytestmark = pytest.mark.comparison

TEXTS = [" ".join(random.Random(length).choices(WORDS, k=length)) for length in (1, 2, 3, 8, 15, 21, 21, 22, 40)]


def random_settings(seed: int) -> dict[str, Any]:
    """Return a configuration that differs from the others in windows, layers, bases, biases and sizes."""
    numbers = random.Random(seed)
    num_layers = numbers.randrange(2, 7)
    kinds = ["sliding_attention", "full_attention"]
    return {
        "hidden_size": numbers.choice([16, 32, 48]),
        "num_attention_heads": numbers.choice([2, 4]),
        "num_hidden_layers": num_layers,
        "intermediate_size": numbers.choice([24, 40]),
        "local_attention": numbers.choice([2, 6, 10, 128]),
        "layer_types": [numbers.choice(kinds) for _ in range(num_layers)],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": numbers.choice([100.0, 10_000.0, 160_000.0])} for kind in kinds
        },
        "norm_bias": numbers.random() < 0.5,
        "attention_bias": numbers.random() < 0.5,
        "mlp_bias": numbers.random() < 0.5,
        "hidden_activation": numbers.choice(["gelu", "gelu_pytorch_tanh"]),
        "has_head": numbers.random() < 0.5,
    }


@pytest.mark.parametrize("seed", range(12))
def test_vectors_of_a_random_configuration_are_those_of_transformers(tmp_path: Path, seed: int) -> None:
    pooling = ("cls", "mean", "lasttoken")[seed % 3]
    folder = make_folder(tmp_path, "modernbert", pooling=pooling, **random_settings(seed))
    expected = np.stack([folder.by_transformers(text) for text in TEXTS])
    found = Embedder(tmp_path).embed(TEXTS).vectors
    assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-5
    assert np.abs(found - expected).max() < 1e-5


def test_the_older_way_to_write_windows_and_bases_is_read(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "modernbert", num_hidden_layers=4, local_attention=6)
    expected_by_default = folder.by_transformers(TEXTS[5])
    said = {"global_attn_every_n_layers": 2, "global_rope_theta": 500.0, "local_rope_theta": 20.0}
    folder.change("config.json", layer_types=None, rope_parameters=None, **said)
    expected = folder.by_transformers(TEXTS[5])
    assert np.abs(expected - expected_by_default).max() > 1e-3
    assert np.abs(Embedder(tmp_path).embed([TEXTS[5]]).vectors[0] - expected).max() < 1e-5


def test_a_vector_does_not_depend_on_its_batch(tmp_path: Path) -> None:
    make_folder(tmp_path, "modernbert", local_attention=6)
    embedder = Embedder(tmp_path)
    alone = np.concatenate([embedder.embed([text]).vectors for text in TEXTS])
    assert np.array_equal(embedder.embed(TEXTS[::-1]).vectors[::-1], alone)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_activation": "silu"}, "hidden_activation is 'silu'"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}}},
            "rope_type of full_attention is 'linear'",
        ),
        ({"num_attention_heads": 32}, "a head has 1 numbers"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    folder = make_folder(tmp_path, "modernbert")
    folder.change("config.json", **settings)
    with pytest.raises(UnsupportedModelError, match=message):
        Embedder(tmp_path)
