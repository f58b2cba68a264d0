"""Tests of weights that stay packed: their values, the tokens of their models, and the memory they take."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.errors import ModelLoadError
from engine.gguf.grouped import LAYOUTS, read_grouped
from engine.gguf.tensor_types import BLOCK_SIZES, TensorType
from engine.models import layer_weights
from engine.models.config import ModelConfig, load_model_config
from engine.models.decoder import Decoder
from engine.models.weights import Checkpoint
from kernels.choice.products import ProductChoice
from kernels.choice.weighing import WeightShape
from kernels.cpu.grouped.panels import pack
from kernels.grouped_linear import GroupedLinear
from kernels.packed_linear import Product, best_product, can_multiply
from tests.engine.gguf.blocks import SLOWLY, some_blocks
from tests.engine.gguf.builders import NUMBER_OF, Written
from tests.engine.gguf.conversion import save, stored, written_as_gguf
from tests.engine.models.builders import build_family
from tests.engine.models.families import Family
from tests.engine.models.layer_runs import cache_of, run
from tests.real_model import real_model, require_gguf

pytestmark = pytest.mark.comparison

ROOT = Path(__file__).resolve().parents[3]
STAYS_PACKED = can_multiply(Product.INT8, torch.bfloat16)

where_packed = pytest.mark.skipif(not STAYS_PACKED, reason="this CPU keeps no weight packed")


def packed_values(kind: str, data: bytes, shape: tuple[int, int]) -> Tensor:
    panels = pack(read_grouped(np.frombuffer(data, np.uint8), TensorType(kind), shape))
    return panels.rows(torch.arange(shape[0])).widened()


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_packed_weight_has_every_value_of_its_blocks(kind: str) -> None:
    size = BLOCK_SIZES[TensorType(kind)]
    data = some_blocks(kind, 150, seed=5)
    got = packed_values(kind, data, (75, 2 * size.num_values))
    for row in (0, 47, 48, 74):
        blocks = [data[start : start + size.num_bytes] for start in range(0, len(data), size.num_bytes)]
        pair = blocks[2 * row : 2 * row + 2]
        assert got[row].tolist() == [float(SLOWLY[kind](block, at)) for block in pair for at in range(size.num_values)]


@pytest.mark.real_model
@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_packed_weight_has_the_values_of_ggmls_own_package(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(require_gguf()))
    gguf: Any = importlib.import_module("gguf")
    data, size, number = some_blocks(kind, 100, seed=6), BLOCK_SIZES[TensorType(kind)], NUMBER_OF[kind]
    expected = gguf.dequantize(np.frombuffer(data, np.uint8).reshape(50, -1), gguf.GGMLQuantizationType(number))
    assert np.array_equal(packed_values(kind, data, (50, 2 * size.num_values)).numpy(), expected)


def mixed(**settings: Any) -> Written:
    """Return a model in which some layers, and some parts of a layer, are stored otherwise."""
    model = build_family(Family(model_type="llama", models="", settings=settings), seed=0)
    written, state = written_as_gguf(model, kind="Q8_0"), model.state_dict()
    written.tensors["blk.1.ffn_down.weight"] = stored(state["model.layers.1.mlp.down_proj.weight"], "F32")
    values = state["model.layers.0.self_attn.v_proj.weight"]
    written.tensors["blk.0.attn_v.weight"] = stored(values, "F32")
    return written


def decoder_of(path: Path, dtype: torch.dtype) -> Decoder:
    config = load_model_config(str(path))
    assert isinstance(config, ModelConfig)
    return Decoder(config, dtype=dtype, device=torch.device("cpu"), max_positions=64)


def results_of(decoder: Decoder, *, at_once: bool = True) -> Tensor:
    """Return the last layer's results, the logits and the caches of a step, as bytes."""
    results = run(decoder, cache_of(decoder, decoder.dtype), at_once=at_once)
    return torch.cat([tensor.flatten().view(torch.uint8) for tensor in results])


@where_packed
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_packed_model_has_the_logits_of_the_widened_one(
    dtype: torch.dtype, is_tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(mixed(tie_word_embeddings=is_tied), tmp_path)
    packed = decoder_of(path, dtype)
    assert isinstance(packed._head, GroupedLinear)
    assert len({layer.kind for layer in packed._layers}) == len(packed._layers)
    monkeypatch.setattr(layer_weights, "stays_packed", lambda *_: False)
    whole = decoder_of(path, dtype)
    assert not isinstance(whole._head, GroupedLinear)
    assert torch.equal(results_of(packed), results_of(whole))
    assert torch.equal(results_of(packed), results_of(packed, at_once=False))


@where_packed
def test_layers_of_different_numbers_of_calls_run_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_weights, "choose_products", of_whole_numbers)
    decoder = decoder_of(save(mixed(), tmp_path), torch.bfloat16)
    assert decoder._at_once is not None
    assert {layer._down.product for layer in decoder._layers} > {Product.INT8}
    assert torch.equal(results_of(decoder), results_of(decoder, at_once=False))


def of_whole_numbers(shapes: list[WeightShape], dtype: torch.dtype) -> ProductChoice:
    default = best_product(dtype)
    products = {shape: default if shape.layout is None else Product.INT8 for shape in shapes}
    return ProductChoice(products=products, origin="unasked")


@where_packed
def test_a_packed_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    path = save(mixed(), tmp_path)
    with Checkpoint(path, dtype=torch.float32) as checkpoint:
        assert checkpoint.layout("no tensor") is None
        with pytest.raises(ModelLoadError, match="has shape"):
            checkpoint.read_grouped("model.layers.0.mlp.up_proj.weight", (1, 32))


SCRIPT = """
import json, sys
import torch
from engine.models.config import load_model_config
from kernels.choice.products import choose_products
from kernels.choice.weighing import WeightShape
from lab.packed_weights import loaded
choose_products([WeightShape(width=4096, depth=1024, count=1, is_in_layers=True)], torch.bfloat16)
with torch.inference_mode():
    print(json.dumps(loaded(load_model_config(sys.argv[1]), torch.bfloat16)[1:]))
"""


@where_packed
@pytest.mark.real_model
def test_loading_a_file_of_98_mb_takes_a_third_more_at_most() -> None:
    command = [sys.executable, "-c", SCRIPT, str(real_model())]
    for _ in range(2):  # the first one may compile kernels, whose compiler's memory is no part of a model's
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=140, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
    grown, most = json.loads(done.stdout.splitlines()[-1])
    assert grown <= 130
    assert most <= 1.3 * 130


@where_packed
def test_the_bytes_of_packed_weights_are_counted(tmp_path: Path) -> None:
    model = build_family(Family(model_type="llama", models=""), seed=0)
    sizes = decoder_of(save(written_as_gguf(model, kind="Q8_0"), tmp_path), torch.float32).sizes
    assert sizes.num_layer_bytes == sizes.num_layer_weights // 32 * 34
    assert sizes.num_head_bytes == sizes.num_head_weights // 32 * 34
