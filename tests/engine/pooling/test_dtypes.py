"""Tests of encoders in other dtypes than float32: near its vectors, in any batch, and refused by name where not."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine import Embedder, Reranker
from engine.errors import InvalidConfigError, UnsupportedModelError
from engine.models.cpu_layers import CpuLayers
from engine.pooling.encoders import encoder_layers
from engine.pooling.encoders.causal_encoder import CausalEncoder
from kernels.choice import products as choice
from kernels.choice.weighing import Times, WeightShape
from kernels.grouped_linear import GroupedLinear
from kernels.packed_linear import Product, can_multiply
from tests.engine.pooling.builders import WORDS, make_cross_encoder, make_folder
from tests.engine.quantized.checkpoints import FORMATS, quantize

pytestmark = pytest.mark.comparison

TEXTS = [" ".join(random.Random(length).choices(WORDS, k=length)) for length in (1, 1, 2, 5, 9, 15, 16, 20, 21, 40)]
DTYPES = ["bfloat16", "int8"]
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}


@pytest.fixture(params=[1, 2])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("model_type", ["bert", "xlm-roberta", "modernbert"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_of_another_dtype_are_near_those_of_float32(tmp_path: Path, model_type: str, dtype: str) -> None:
    make_folder(tmp_path, model_type, local_attention=6, **SIZES)
    exact, found = (Embedder(tmp_path, dtype=each).embed(TEXTS).vectors for each in ("float32", dtype))
    assert (exact * found).sum(1).min() > 0.999
    assert np.abs(exact - found).max() > 1e-5  # computed in another dtype


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("model_type", ["bert", "modernbert"])
@pytest.mark.parametrize("dtype", ["float32", *DTYPES])
def test_a_vectors_bits_do_not_depend_on_its_batch(tmp_path: Path, model_type: str, dtype: str) -> None:
    make_folder(tmp_path, model_type, local_attention=6, **SIZES)
    embedder = Embedder(tmp_path, dtype=dtype, max_batch_tokens=50)
    alone = np.concatenate([embedder.embed([text]).vectors for text in TEXTS])
    for _ in range(2):  # the second time with recordings of the first
        assert np.array_equal(embedder.embed(TEXTS[::-1] * 2).vectors[::-1], np.tile(alone, (2, 1)))


@pytest.mark.parametrize("model_type", ["bert", "modernbert"])
@pytest.mark.parametrize("dtype", ["float32", *DTYPES])
def test_layers_at_once_have_the_bits_of_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str, dtype: str
) -> None:
    make_folder(tmp_path, model_type, local_attention=6, **SIZES)
    at_once = Embedder(tmp_path, dtype=dtype)
    assert isinstance(at_once._encoder._layers._own.at_once, CpuLayers)  # type: ignore[attr-defined]
    monkeypatch.setattr(encoder_layers, "cpu_layers", lambda _: None)
    assert np.array_equal(Embedder(tmp_path, dtype=dtype).embed(TEXTS).vectors, at_once.embed(TEXTS).vectors)


def test_a_decoder_embeds_in_bfloat16(tmp_path: Path) -> None:
    make_folder(tmp_path, "qwen3", pooling="lasttoken")
    exact, found = (Embedder(tmp_path, dtype=each).embed(TEXTS).vectors for each in ("auto", "bfloat16"))
    assert (exact * found).sum(1).min() > 0.999
    with pytest.raises(UnsupportedModelError, match="is a decoder, which int8 is not for"):
        Embedder(tmp_path, dtype="int8")


@pytest.mark.skipif(not can_multiply(Product.INT8, torch.bfloat16), reason="this CPU keeps no weight packed")
def test_quantized_weights_of_a_decoder_are_widened_even_where_whole_numbers_are_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def last_is_fastest(
        shapes: Sequence[WeightShape], products: Sequence[Product], *, seconds: float
    ) -> dict[WeightShape, dict[Product, Times]]:
        return {
            shape: {product: dict.fromkeys(shape.shares, 0.5**at) for at, product in enumerate(products)}
            for shape in shapes
        }

    make_folder(tmp_path, "qwen3", pooling="lasttoken", has_head=True, **SIZES)
    quantize(tmp_path, FORMATS["w8a8"])
    monkeypatch.setattr(choice, "cache_directory", lambda: None)
    monkeypatch.setattr(choice, "time_products", last_is_fastest)
    monkeypatch.setattr(choice, "_FEWEST_WEIGHTS", 0)
    encoder = Embedder(tmp_path, dtype="bfloat16")._encoder
    assert isinstance(encoder, CausalEncoder)
    linears = [linear for layer in encoder._decoder._layers for linear in layer.linears]
    assert {type(linear) for linear in linears} == {GroupedLinear}
    assert Product.INT8 not in {linear.product for linear in linears}


@pytest.mark.parametrize("model_type", ["bert", "roberta", "modernbert"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_of_another_dtype_are_near_and_independent_of_their_batch(
    tmp_path: Path, model_type: str, dtype: str
) -> None:
    make_cross_encoder(tmp_path, model_type, **SIZES)
    query, documents = "is the sea cold", TEXTS[:8]
    exact = Reranker(tmp_path).score(query, documents).scores
    reranker = Reranker(tmp_path, dtype=dtype)
    found = reranker.score(query, documents).scores
    assert np.abs(exact - found).max() < 0.1 * np.abs(exact).max()
    assert [reranker.score(query, [document]).scores[0] for document in documents] == found.tolist()


def test_a_dtype_that_is_not_computed_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path)
    with pytest.raises(InvalidConfigError, match=r"dtype is 'float16'; .* use auto, float32, bfloat16, int8"):
        Embedder(tmp_path, dtype="float16")
    make_cross_encoder(tmp_path / "cross", "bert")
    with pytest.raises(InvalidConfigError, match="dtype is 'int4'"):
        Reranker(tmp_path / "cross", dtype="int4")


def test_weights_without_whole_groups_are_refused_in_int8(tmp_path: Path) -> None:
    make_folder(tmp_path)  # an intermediate layer of 48
    with pytest.raises(UnsupportedModelError, match="int8 takes weights in groups of 32, and some here have 48 inputs"):
        Embedder(tmp_path, dtype="int8")
