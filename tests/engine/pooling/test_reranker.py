"""Tests of scores for a query and documents: transformers' own logits for random cross-encoders, in any batch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForSequenceClassification

from engine import Reranker
from engine.errors import InvalidConfigError, InvalidRequestError, ModelLoadError, UnsupportedModelError
from engine.pooling.purposes import Purpose, purpose_of
from tests.engine.pooling.builders import WORDS, make_cross_encoder, make_folder

pytestmark = pytest.mark.comparison

QUERY = "is the sea cold"
DOCUMENTS = [" ".join(random.Random(length).choices(WORDS, k=length)) for length in (1, 7, 7, 2, 60, 12, 0)]
MAX_TOKENS = {"bert": 40, "roberta": 38, "xlm-roberta": 38, "modernbert": 40}
"""Of the builder's 40 positions; a RoBERTa counts from the one after its padding token."""


def by_transformers(path: Path, model_type: str, query: str, documents: list[str]) -> npt.NDArray[np.float32]:
    """Return the logit of each pair alone, with transformers' modelling code and eager attention."""
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS[model_type], strategy="only_second")
    model = AutoModelForSequenceClassification.from_pretrained(
        path, attn_implementation="eager", dtype=torch.float32
    ).eval()
    found = []
    for document in documents:
        encoding = tokenizer.encode(query, document)
        with torch.inference_mode():
            types = {} if model_type == "modernbert" else {"token_type_ids": torch.tensor([encoding.type_ids])}
            logits = model(torch.tensor([encoding.ids]), **types).logits
        found.append(logits[0, 0].item())
    return np.array(found, np.float32)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "xlm-roberta"])
def test_scores_are_the_logits_of_transformers(tmp_path: Path, model_type: str) -> None:
    make_cross_encoder(tmp_path, model_type)
    expected = by_transformers(tmp_path, model_type, QUERY, DOCUMENTS)
    assert np.ptp(expected) > 0.01  # else any order would do
    found = Reranker(tmp_path).score(QUERY, DOCUMENTS)
    assert np.abs(found.scores - expected).max() < 1e-5


@pytest.mark.parametrize("classifier_pooling", ["cls", "mean"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_head_of_a_modernbert_is_that_of_transformers(
    tmp_path: Path, classifier_pooling: str, has_bias: bool
) -> None:
    settings = {"classifier_bias": has_bias, "norm_bias": has_bias, "local_attention": 6}
    make_cross_encoder(tmp_path, "modernbert", classifier_pooling=classifier_pooling, **settings)
    expected = by_transformers(tmp_path, "modernbert", QUERY, DOCUMENTS)
    assert np.ptp(expected) > 0.01
    assert np.abs(Reranker(tmp_path).score(QUERY, DOCUMENTS).scores - expected).max() < 1e-5


def test_the_parts_of_a_pair_are_told_apart_by_their_types(tmp_path: Path) -> None:
    make_cross_encoder(tmp_path, "bert")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert sorted(set(tokenizer.encode(QUERY, "the sea").type_ids)) == [0, 1]
    reranker = Reranker(tmp_path)
    swapped = reranker.score("the sea", [QUERY]).scores
    assert np.abs(reranker.score(QUERY, ["the sea"]).scores - swapped).max() > 1e-4


@pytest.mark.parametrize("max_batch_tokens", [1, 50, 10_000])
def test_a_score_does_not_depend_on_its_batch(tmp_path: Path, max_batch_tokens: int) -> None:
    make_cross_encoder(tmp_path, "xlm-roberta")
    reranker = Reranker(tmp_path, max_batch_tokens=max_batch_tokens)
    alone = np.concatenate([reranker.score(QUERY, [document]).scores for document in DOCUMENTS])
    assert np.abs(reranker.score(QUERY, DOCUMENTS[::-1]).scores[::-1] - alone).max() < 1e-5


def test_a_document_that_was_too_long_is_named_and_the_query_is_kept(tmp_path: Path) -> None:
    make_cross_encoder(tmp_path, "bert")
    found = Reranker(tmp_path).score(QUERY, DOCUMENTS)
    assert found.truncated == (False, False, False, False, True, False, False)
    assert found.num_tokens == (8, 14, 14, 9, 40, 19, 7)


def test_a_query_that_leaves_no_room_for_a_document_is_refused(tmp_path: Path) -> None:
    make_cross_encoder(tmp_path, "bert")
    reranker = Reranker(tmp_path)
    fits = " ".join(["sea"] * 36)
    assert reranker.score(fits, ["the sea"]).num_tokens == (40,)
    with pytest.raises(InvalidRequestError, match="query has 37 tokens; beside a document it may have 36"):
        reranker.score(f"{fits} sea", ["the sea"])
    assert reranker.score(QUERY, [" ".join(WORDS * 9)]).num_tokens == (40,)  # the limit holds after a refusal


def test_no_documents_have_no_scores(tmp_path: Path) -> None:
    make_cross_encoder(tmp_path, "bert")
    found = Reranker(tmp_path).score(QUERY, [])
    assert found.scores.shape == (0,)
    assert found.num_tokens == found.truncated == ()


def test_documents_may_come_one_by_one(tmp_path: Path) -> None:
    make_cross_encoder(tmp_path, "bert")
    reranker = Reranker(tmp_path)
    assert np.array_equal(reranker.score(QUERY, iter(DOCUMENTS)).scores, reranker.score(QUERY, DOCUMENTS).scores)


def test_what_is_no_text_is_refused_by_its_place(tmp_path: Path) -> None:
    make_cross_encoder(tmp_path, "bert")
    reranker = Reranker(tmp_path)
    wrong: list[Any] = ["the sea", 5]
    with pytest.raises(InvalidRequestError, match=r"documents\[1\] is of type int"):
        reranker.score(QUERY, wrong)
    with pytest.raises(InvalidRequestError, match=r"query has .* half of a surrogate pair"):
        reranker.score("\ud800", ["the sea"])
    with pytest.raises(InvalidRequestError, match="documents is of type str"):
        reranker.score(QUERY, "the sea")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"id2label": {"0": "no", "1": "yes"}}, "it has 2 labels"),
        ({"id2label": None}, "it has 2 labels"),
        ({"architectures": ["BertForMaskedLM"]}, "its architecture is BertForMaskedLM"),
        ({"architectures": None}, "its architecture is None"),
    ],
)
def test_what_gives_no_score_is_refused_by_name(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    folder = make_cross_encoder(tmp_path, "bert")
    folder.change("config.json", **settings)
    with pytest.raises(UnsupportedModelError, match=message):
        Reranker(tmp_path)


def test_an_activation_that_is_not_computed_is_refused_by_name(tmp_path: Path) -> None:
    make_cross_encoder(tmp_path, "modernbert", classifier_activation="silu")
    with pytest.raises(UnsupportedModelError, match="classifier_activation is 'silu'; the activations here are gelu"):
        Reranker(tmp_path)


def test_modules_that_give_no_score_are_refused_by_name(tmp_path: Path) -> None:
    make_folder(tmp_path, "modernbert")
    with pytest.raises(UnsupportedModelError, match="has the modules Transformer, Pooling, Normalize; scores"):
        Reranker(tmp_path)


def test_a_prompt_that_is_written_before_texts_is_refused(tmp_path: Path) -> None:
    folder = make_cross_encoder(tmp_path, "bert")
    folder.write("config_sentence_transformers.json", {"default_prompt_name": "query"})
    with pytest.raises(UnsupportedModelError, match="prompt 'query' for every text"):
        Reranker(tmp_path)


def test_a_head_with_labels_is_for_reranking(tmp_path: Path) -> None:
    make_cross_encoder(tmp_path, "bert")
    assert purpose_of(tmp_path) is Purpose.RERANK


def test_a_head_that_is_not_there_is_named(tmp_path: Path) -> None:
    folder = make_cross_encoder(tmp_path, "xlm-roberta")
    folder.change("config.json", model_type="bert")
    with pytest.raises(ModelLoadError, match=r"bert\.pooler\.dense\."):
        Reranker(tmp_path)


def test_a_batch_of_no_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="max_batch_tokens is 0"):
        Reranker(tmp_path, max_batch_tokens=0)
