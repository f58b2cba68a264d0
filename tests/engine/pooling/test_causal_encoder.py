"""Tests of decoders that embed: transformers' own vectors for random configurations, in any batch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine import Embedder
from engine.errors import UnsupportedModelError
from engine.pooling.purposes import Purpose, purpose_of
from tests.engine.pooling.builders import WORDS, make_folder, random_decoder

pytestmark = pytest.mark.comparison

TEXTS = [" ".join(random.Random(length).choices(WORDS, k=length)) for length in (1, 2, 8, 15, 16, 17, 21, 21, 22, 40)]


@pytest.mark.parametrize("seed", range(8))
def test_vectors_of_a_random_configuration_are_those_of_transformers(tmp_path: Path, seed: int) -> None:
    folder = make_folder(tmp_path, "qwen3", pooling="lasttoken", has_head=seed % 2 == 0, **random_decoder(seed))
    expected = np.stack([folder.by_transformers(text) for text in TEXTS])
    found = Embedder(tmp_path).embed(TEXTS).vectors
    assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-5
    assert np.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize("max_batch_tokens", [1, 50, 10_000])
def test_a_vector_does_not_depend_on_its_batch(tmp_path: Path, max_batch_tokens: int) -> None:
    make_folder(tmp_path, "qwen3", pooling="lasttoken")
    embedder = Embedder(tmp_path, max_batch_tokens=max_batch_tokens)
    alone = np.concatenate([embedder.embed([text]).vectors for text in TEXTS])
    assert np.abs(embedder.embed(TEXTS[::-1]).vectors[::-1] - alone).max() < 1e-6


def test_batches_beside_one_another_have_the_vectors_of_their_own_texts(tmp_path: Path) -> None:
    make_folder(tmp_path, "qwen3", pooling="lasttoken")
    embedder = Embedder(tmp_path, max_batch_tokens=1)
    alone = np.concatenate([embedder.embed([text]).vectors for text in TEXTS])
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        found = embedder.embed(TEXTS * 20).vectors
    finally:
        torch.set_num_threads(before)
    assert np.abs(found - np.tile(alone, (20, 1))).max() < 1e-6


def test_fewer_dimensions_are_the_first_ones_at_length_one(tmp_path: Path) -> None:
    make_folder(tmp_path, "qwen3", pooling="lasttoken")
    embedder = Embedder(tmp_path)
    whole, cut = embedder.embed(TEXTS).vectors, embedder.embed(TEXTS, dimensions=8).vectors
    assert np.abs(cut - whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True)).max() < 1e-6


def test_the_token_that_ends_a_text_is_the_tokenizers_own(tmp_path: Path) -> None:
    make_folder(tmp_path, "qwen3", pooling="lasttoken")
    (found,) = Embedder(tmp_path).tokenize(["the sea"])
    assert found.token_ids.tolist()[-1] == 0
    assert len(found.token_ids) == 3


def test_a_decoder_is_for_embeddings_where_its_folder_pools(tmp_path: Path) -> None:
    make_folder(tmp_path, "qwen3", pooling="lasttoken", has_head=True)
    assert purpose_of(tmp_path) is Purpose.EMBED
    (tmp_path / "modules.json").unlink()
    assert purpose_of(tmp_path) is None


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_only_the_last_token_is_pooled(tmp_path: Path, pooling: str) -> None:
    make_folder(tmp_path, "qwen3", pooling=pooling)
    with pytest.raises(UnsupportedModelError, match=f"pools by {pooling}, and in a qwen3 only the last token"):
        Embedder(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"auto_map": {"AutoModel": "theirs.Model"}}, "code of its own"),
        ({"is_causal": False}, "its qwen3 sees all tokens of a text at once"),
        ({"use_bidirectional_attention": True}, "its qwen3 sees all tokens"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    folder = make_folder(tmp_path, "qwen3", pooling="lasttoken")
    folder.change("config.json", **settings)
    with pytest.raises(UnsupportedModelError, match=message):
        Embedder(tmp_path)
