"""Tests of a real encoder, all-MiniLM-L6-v2: transformers' tokens and vectors on the same files, and similarities."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from engine import Embedder
from engine.pooling.text_tokens import TextTokens
from tests.real_model import real_encoder

pytestmark = [pytest.mark.comparison, pytest.mark.real_model]

MAX_SEQ_LENGTH = 256
TEXTS = [
    "",
    "A man is eating food.",
    "A Man is EATING a piece of bread!",
    "Your parcel number 4471 arrives on Wednesday at noon.",
    "naïve größer 漢字 😀 \t tabs\n\nand lines",
    "The invoice is due within thirty days of its date, net of any discount. " * 9,
    "The invoice is due within thirty days of its date, net of any discount. " * 90,
]


def by_transformers(texts: list[str]) -> tuple[list[list[int]], npt.NDArray[np.float32]]:
    """Return the token ids of each text and its vector, as the model's card computes them: padded, under a mask."""
    path = real_encoder()
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    batch = tokenizer(texts, padding=True, truncation=True, max_length=MAX_SEQ_LENGTH, return_tensors="pt")
    with torch.inference_mode():
        rows = AutoModel.from_pretrained(path, dtype=torch.float32)(**batch).last_hidden_state
    mask = batch["attention_mask"]
    means = (rows * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    token_ids = [ids[kept.bool()].tolist() for ids, kept in zip(batch["input_ids"], mask, strict=True)]
    return token_ids, torch.nn.functional.normalize(means, dim=-1).numpy()


def test_tokens_and_vectors_are_those_of_transformers() -> None:
    token_ids, expected = by_transformers(TEXTS)
    tokens = TextTokens(real_encoder(), vocab_size=30_522, max_tokens=MAX_SEQ_LENGTH, is_lower_cased=False)
    found = Embedder(real_encoder()).embed(TEXTS)
    assert [text.token_ids.tolist() for text in tokens(TEXTS)] == token_ids
    assert np.abs(found.vectors - expected).max() < 1e-5
    assert found.num_tokens == tuple(map(len, token_ids))
    assert found.truncated == (False,) * 6 + (True,)


def test_a_real_vector_does_not_depend_on_its_batch() -> None:
    embedder = Embedder(real_encoder())
    alone = np.concatenate([embedder.embed([text]).vectors for text in TEXTS])
    assert np.abs(embedder.embed(TEXTS * 3).vectors - np.tile(alone, (3, 1))).max() < 1e-6


def test_texts_of_one_meaning_are_near() -> None:
    meal, bread, parcel = Embedder(real_encoder()).embed([TEXTS[1], TEXTS[2], TEXTS[3]]).vectors
    assert meal @ bread > 0.6
    assert meal @ parcel < 0.2
