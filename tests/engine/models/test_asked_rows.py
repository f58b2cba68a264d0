"""Tests of the last layer over a few rows of a step against the same layer over all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.models import asked_rows
from engine.models.config import ModelConfig, load_model_config
from engine.models.decoder import Decoder
from engine.models.step_model import KvCache, StepTensors
from kernels.paged import LayerCache, PagedStep
from tests.engine.tiny_models import VARIANTS, save_tiny

BLOCK_SIZE = 4
LENGTHS = [1, 13, 9]
"""New tokens of three sequences; each has 3 tokens cached before them."""
CACHED = 3
ALL_ROWS = torch.arange(sum(LENGTHS))


def decoder_of(name: str, path: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    save_tiny(path, VARIANTS[name])
    config = load_model_config(str(path))
    assert isinstance(config, ModelConfig)
    return Decoder(config, dtype=dtype, device=torch.device("cpu"), max_positions=64)


def step() -> StepTensors:
    tables = [[4 * row + 1 + block for block in range(4)] for row in range(len(LENGTHS))]
    places = [(row, CACHED + at) for row, count in enumerate(LENGTHS) for at in range(count)]
    slots = [tables[row][at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for row, at in places]
    starts = [sum(LENGTHS[:row]) for row in range(len(LENGTHS) + 1)]
    return StepTensors(
        token_ids=torch.arange(sum(LENGTHS)) * 7 % 256,
        paged=PagedStep(
            block_tables=torch.tensor(tables, dtype=torch.int32),
            query_start=torch.tensor(starts, dtype=torch.int32),
            context_lens=torch.tensor([CACHED + count for count in LENGTHS], dtype=torch.int32),
            slots=torch.tensor(slots),
            positions=torch.tensor([at for _, at in places]),
            max_query_len=max(LENGTHS),
            max_context_len=CACHED + max(LENGTHS),
            num_decodes=1,
        ),
    )


def cache_of(decoder: Decoder) -> KvCache:
    generator, config = torch.Generator().manual_seed(1), decoder.config
    shape = (4 * len(LENGTHS) + 1, config.num_kv_heads, BLOCK_SIZE, config.head_dim)
    return [
        LayerCache(*(torch.randn(shape, generator=generator).to(decoder.dtype) for _ in range(2)))
        for _ in range(config.num_layers)
    ]


def caches_of(cache: KvCache) -> list[torch.Tensor]:
    return [tensor for pair in cache for tensor in pair]


def assert_same(decoder: Decoder, actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Bit for bit where products are ours; torch's may add up otherwise for another number of rows."""
    is_ours = decoder._layers[0].addresses is not None
    tolerance = 0.0 if is_ours else 1e-2
    torch.testing.assert_close(actual.float(), expected.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("rows", [[], [0], [0, 13, 22], [5, 6, 7, 20]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", VARIANTS)
@torch.inference_mode()
def test_asked_rows_and_the_cache_are_those_of_the_whole_step(
    *, name: str, dtype: torch.dtype, rows: list[int], at_once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, asked = decoder_of(name, tmp_path, dtype), torch.tensor(rows, dtype=torch.int64)
    if not at_once:
        decoder._at_once = None
    whole, part = cache_of(decoder), cache_of(decoder)
    expected = decoder.run(step(), whole, ALL_ROWS)[asked]
    monkeypatch.setattr(asked_rows, "_MIN_SPARED", 1)
    assert_same(decoder, decoder.run(step(), part, asked), expected)
    for actual, kept in zip(caches_of(part), caches_of(whole), strict=True):
        assert_same(decoder, actual, kept)


@torch.inference_mode()
def test_a_step_with_few_other_rows_is_run_whole(tmp_path: Path) -> None:
    decoder = decoder_of("llama-gqa", tmp_path)
    x, _ = decoder.forward(step(), cache_of(decoder), torch.tensor([22]))
    assert x.shape[0] == sum(LENGTHS)


@torch.inference_mode()
def test_the_last_layer_computes_the_asked_rows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoder_of("llama-gqa", tmp_path)
    monkeypatch.setattr(asked_rows, "_MIN_SPARED", 22)
    x, residual = decoder.forward(step(), cache_of(decoder), torch.tensor([22]))
    assert x.shape[0] == residual.shape[0] == 1
