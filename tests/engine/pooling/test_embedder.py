"""Tests of embedding texts: transformers' own vectors for random encoders, in any batch; truncation is reported."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from engine import Embedder
from engine.errors import InvalidConfigError, InvalidRequestError, ModelLoadError, UnsupportedModelError
from tests.engine.pooling.builders import MAX_SEQ_LENGTH, WORDS, Folder, make_folder
from tests.engine.tiny_models import overwrite_weights

pytestmark = pytest.mark.comparison

ROUNDING = 1e-6
"""Maximum difference of unit vectors in fp32 when a product has other rows."""


def some_texts(count: int = 40) -> list[str]:
    """Return texts of every length from none to far too long, many of one length, in random order."""
    numbers = random.Random(3)
    lengths = [0, 1, 1, 2, 60, *(numbers.randrange(1, 30) for _ in range(count - 5))]
    numbers.shuffle(lengths)
    return [" ".join(numbers.choices([*WORDS, "unheard"], k=length)) for length in lengths]


@pytest.mark.parametrize("model_type", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "lasttoken"])
def test_vectors_are_those_of_transformers(tmp_path: Path, model_type: str, pooling: str) -> None:
    folder = make_folder(tmp_path, model_type, pooling=pooling)
    texts = some_texts(12)
    expected = np.stack([folder.by_transformers(text) for text in texts])
    assert np.abs(Embedder(tmp_path).embed(texts).vectors - expected).max() < 1e-5


@pytest.mark.parametrize("activation", ["gelu_new", "gelu_pytorch_tanh", "relu"])
def test_each_activation_is_that_of_transformers(tmp_path: Path, activation: str) -> None:
    folder = make_folder(tmp_path, hidden_act=activation)
    found = Embedder(tmp_path).embed(["ships sail to no port"]).vectors[0]
    assert np.abs(found - folder.by_transformers("ships sail to no port")).max() < 1e-5


def test_a_padding_token_within_a_text_has_no_position_of_its_own_as_in_transformers(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "xlm-roberta")
    text = "the sea <pad> is cold"
    assert np.abs(Embedder(tmp_path).embed([text]).vectors[0] - folder.by_transformers(text)).max() < 1e-5


@pytest.mark.parametrize("model_type", ["bert", "xlm-roberta"])
def test_an_encoder_under_a_head_is_found(tmp_path: Path, model_type: str) -> None:
    folder = make_folder(tmp_path, model_type, has_head=True)
    assert np.abs(Embedder(tmp_path).embed(["the sea"]).vectors[0] - folder.by_transformers("the sea")).max() < 1e-5


@pytest.mark.parametrize("model_type", ["bert", "modernbert", "qwen3"])
def test_what_is_written_over_the_file_of_a_loaded_model_changes_nothing(tmp_path: Path, model_type: str) -> None:
    make_folder(tmp_path, model_type, pooling="lasttoken" if model_type == "qwen3" else "mean")
    embedder = Embedder(tmp_path)
    expected = embedder.embed(["the sea is wide"]).vectors
    overwrite_weights(tmp_path)
    assert np.array_equal(embedder.embed(["the sea is wide"]).vectors, expected)


def test_without_a_module_that_normalizes_vectors_keep_their_length(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, is_normalized=False)
    found = Embedder(tmp_path).embed(["the sea is wide"]).vectors[0]
    assert abs(float(np.linalg.norm(found)) - 1) > 0.1
    assert np.abs(found - folder.by_transformers("the sea is wide")).max() < 1e-5


@pytest.mark.parametrize("max_batch_tokens", [1, 50, 10_000])
def test_a_vector_does_not_depend_on_its_batch(tmp_path: Path, max_batch_tokens: int) -> None:
    make_folder(tmp_path)
    texts = some_texts()
    embedder = Embedder(tmp_path, max_batch_tokens=max_batch_tokens)
    alone = np.concatenate([embedder.embed([text]).vectors for text in texts])
    together = embedder.embed(texts)
    backwards = embedder.embed(texts[::-1])
    assert np.array_equal(together.vectors, alone)
    assert np.array_equal(backwards.vectors[::-1], alone)
    assert together.num_tokens == backwards.num_tokens[::-1]


def test_a_text_that_was_too_long_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path)
    fits = " ".join(["sea"] * (MAX_SEQ_LENGTH - 2))
    found = Embedder(tmp_path).embed(["sea", f"{fits} sea", fits])
    assert found.truncated == (False, True, False)
    assert found.num_tokens == (3, MAX_SEQ_LENGTH, MAX_SEQ_LENGTH)
    assert np.abs(found.vectors[1] - found.vectors[2]).max() < ROUNDING


def test_the_padding_and_the_truncation_of_tokenizer_json_are_not_followed(tmp_path: Path) -> None:
    make_folder(tmp_path)
    before = Embedder(tmp_path).embed(["the sea is cold and wide"])
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    after = Embedder(tmp_path).embed(["the sea is cold and wide"])
    assert after.num_tokens == before.num_tokens == (8,)
    assert np.array_equal(after.vectors, before.vectors)


@pytest.mark.parametrize(("model_max_length", "expected"), [(16, 16), (10**30, 38), (None, 38)])
def test_without_max_seq_length_the_tokenizer_and_the_positions_decide(
    tmp_path: Path, model_max_length: int | None, expected: int
) -> None:
    folder = make_folder(tmp_path, "xlm-roberta")
    (tmp_path / "sentence_bert_config.json").unlink()
    folder.write("tokenizer_config.json", {} if model_max_length is None else {"model_max_length": model_max_length})
    assert Embedder(tmp_path).embed([" ".join(["sea"] * 60)]).num_tokens == (expected,)


def test_fewer_dimensions_are_the_first_ones_at_length_one(tmp_path: Path) -> None:
    make_folder(tmp_path)
    texts = some_texts(6)
    whole, cut = Embedder(tmp_path).embed(texts).vectors, Embedder(tmp_path).embed(texts, dimensions=8).vectors
    assert cut.shape == (6, 8)
    assert np.abs(cut - whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True)).max() < ROUNDING


def test_a_folder_may_ask_for_lower_case(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    folder.change("sentence_bert_config.json", do_lower_case=True)
    found = Embedder(tmp_path).embed(["The SEA", "the sea"]).vectors
    assert np.abs(found[0] - found[1]).max() < ROUNDING


def test_its_tokenizer_counts_as_it_does_and_shortens_nothing(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    for is_lower_cased in (False, True):
        folder.change("sentence_bert_config.json", do_lower_case=is_lower_cased)
        embedder = Embedder(tmp_path)
        for text in ("The SEA is Cold", "ships sail to no port today"):
            (found,) = embedder.tokenize([text])
            assert embedder.tokenizer.encode(text).ids == found.token_ids.tolist()
        assert len(embedder.tokenizer.encode("sea " * 2 * embedder.max_tokens).ids) > embedder.max_tokens


def test_no_texts_give_no_vectors(tmp_path: Path) -> None:
    make_folder(tmp_path)
    found = Embedder(tmp_path).embed([])
    assert found.vectors.shape == (0, 32)
    assert found.num_tokens == found.truncated == ()


def test_a_folder_without_modules_is_pooled_as_the_caller_says(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, pooling="lasttoken")
    (tmp_path / "modules.json").unlink()
    found = Embedder(tmp_path, pooling="last_token").embed(["the sea is wide"]).vectors[0]
    assert np.abs(found - folder.by_transformers("the sea is wide")).max() < 1e-5
    with pytest.raises(InvalidConfigError, match="set pooling to one of cls, mean, last_token"):
        Embedder(tmp_path)
    with pytest.raises(InvalidConfigError, match="pooling is 'max'"):
        Embedder(tmp_path, pooling="max")


def test_pooling_is_not_said_twice(tmp_path: Path) -> None:
    make_folder(tmp_path)
    with pytest.raises(InvalidConfigError, match=r"pooling is .*modules\.json"):
        Embedder(tmp_path, pooling="mean")


def test_the_newer_name_of_a_pooling_is_read(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, pooling="cls")
    folder.write("1_Pooling/config.json", {"embedding_dimension": 32, "pooling_mode": "cls"})
    found = Embedder(tmp_path).embed(["the sea"]).vectors[0]
    assert np.abs(found - folder.by_transformers("the sea")).max() < 1e-5


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("config.json", {"model_type": "gpt2"}, "model_type is 'gpt2'"),
        ("config.json", {"is_decoder": True}, "is_decoder is true"),
        ("config.json", {"auto_map": {"AutoModel": "theirs.Model"}}, "code of its own"),
        ("config.json", {"quantization_config": {"quant_method": "fp8"}}, "quantized"),
        ("config.json", {"position_embedding_type": "alibi"}, "'alibi'"),
        ("config.json", {"hidden_act": "silu"}, "hidden_act is 'silu'"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "mean_tokens and max_tokens"),
        ("1_Pooling/config.json", {"pooling_mode": "weightedmean"}, "pools by weightedmean"),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "prompt 'query'"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    tmp_path: Path, name: str, settings: dict[str, Any], message: str
) -> None:
    folder = make_folder(tmp_path)
    if not (tmp_path / name).exists():
        folder.write(name, {})
    folder.change(name, **settings)
    with pytest.raises(UnsupportedModelError, match=message):
        Embedder(tmp_path)


def test_a_module_that_is_not_computed_is_refused_by_name(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    dense = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    folder.write("modules.json", [*modules[:2], dense])
    with pytest.raises(UnsupportedModelError, match="Transformer, Pooling, Dense"):
        Embedder(tmp_path)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("sentence_bert_config.json", {"max_seq_length": 41}, "max_seq_length is 41 .* positions for 40"),
        ("sentence_bert_config.json", {"max_seq_length": "24"}, "max_seq_length is '24'"),
        ("sentence_bert_config.json", {"max_seq_length": 2}, "2 tokens, 2 of them special"),
        ("config.json", {"vocab_size": 9}, "has 16 tokens, the model 9"),
        ("config.json", {"num_attention_heads": 5}, "5 heads do not divide"),
        ("config.json", {"intermediate_size": 50}, "has shape"),
        ("config.json", {"num_hidden_layers": 4}, r"no tensor encoder\.layer\.3"),
        ("config.json", {"hidden_size": "wide"}, "no configuration of a bert"),
        ("1_Pooling/config.json", {"word_embedding_dimension": 64}, "64 .* 32"),
    ],
)
def test_a_folder_that_contradicts_itself_is_refused(
    tmp_path: Path, name: str, settings: dict[str, Any], message: str
) -> None:
    make_folder(tmp_path).change(name, **settings)
    with pytest.raises(ModelLoadError, match=message):
        Embedder(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "1_Pooling/config.json", "model.safetensors"])
def test_a_file_that_is_missing_or_broken_is_named(tmp_path: Path, name: str) -> None:
    make_folder(tmp_path)
    (tmp_path / name).write_text("{")
    with pytest.raises(ModelLoadError, match=name):
        Embedder(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ModelLoadError, match=name):
        Embedder(tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return make_folder(tmp_path_factory.mktemp("encoder"))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("the sea", "texts is of type str; give a list"),
        (None, "texts is of type NoneType"),
        ({"the sea": 1}, "texts is of type dict"),
        (["the sea", 7], r"texts\[1\] is of type int"),
        (["the sea", "half \ud83d"], r"texts\[1\] has .* at character 5"),
    ],
)
def test_what_is_no_text_is_named(folder: Folder, texts: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        Embedder(folder.path).embed(texts)


def test_texts_may_come_one_by_one(folder: Folder) -> None:
    embedder, texts = Embedder(folder.path), ["the sea", "the sea is wide"]
    assert np.array_equal(embedder.embed(iter(texts)).vectors, embedder.embed(texts).vectors)


@pytest.mark.parametrize("dimensions", [0, 33, -1, 1.5, "8", True])
def test_dimensions_out_of_range_are_refused(folder: Folder, dimensions: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"dimensions is {dimensions!r}; this model has vectors of 1 to 32"):
        Embedder(folder.path).embed(["the sea"], dimensions=dimensions)


def test_a_text_without_any_token_is_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    folder.change("tokenizer.json", post_processor=None)
    with pytest.raises(InvalidRequestError, match=r"texts\[1\] has no tokens"):
        Embedder(tmp_path).embed(["the sea", ""])


def test_a_batch_has_room_for_a_token(folder: Folder) -> None:
    with pytest.raises(InvalidConfigError, match="max_batch_tokens is 0"):
        Embedder(folder.path, max_batch_tokens=0)
