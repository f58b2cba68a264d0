"""Tests of all layers in one call against the same layers one by one, for every kind of model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.models import layer_weights
from engine.models.config import ModelConfig, load_model_config
from engine.models.decoder import Decoder
from engine.models.step_model import StepTensors
from kernels.choice.products import ProductChoice
from kernels.cpu.runtime.program import can_run
from kernels.errors import KernelInputError
from kernels.packed_linear import Product, can_multiply, products_for
from kernels.paged import PagedStep
from tests.engine.models.layer_runs import BLOCK_SIZE, cache_of, mixed_step, run
from tests.engine.tiny_models import VARIANTS, save_tiny

UNITS = [product for product in products_for(torch.bfloat16) if product.unit]

pytestmark = [
    pytest.mark.comparison,
    pytest.mark.skipif(not (UNITS and can_run()), reason="this CPU or system runs the layers of a decoder one by one"),
]


def decoder_of(name: str, path: Path, dtype: torch.dtype = torch.bfloat16) -> Decoder:
    save_tiny(path, VARIANTS[name])
    config = load_model_config(str(path))
    assert isinstance(config, ModelConfig)
    return Decoder(config, dtype=dtype, device=torch.device("cpu"), max_positions=64)


@pytest.mark.parametrize(
    ("dtype", "cache_dtype"),
    [(torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.float32, torch.float32)],
)
@pytest.mark.parametrize("name", VARIANTS)
def test_one_call_gives_the_bits_of_layer_by_layer(
    name: str, dtype: torch.dtype, cache_dtype: torch.dtype, tmp_path: Path
) -> None:
    decoder = decoder_of(name, tmp_path, dtype)
    assert decoder._at_once is not None
    expected = run(decoder, cache_of(decoder, cache_dtype), at_once=False)
    for _ in range(3):
        actual = run(decoder, cache_of(decoder, cache_dtype), at_once=True)
        assert all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))


def decodes(contexts: list[int], *, first_block: int = 1) -> StepTensors:
    """A token each of sequences that hold two blocks of their own, and see so many tokens."""
    own = [[first_block + 2 * row, first_block + 2 * row + 1] for row in range(len(contexts))]
    last = [count - 1 for count in contexts]
    slots = [own[row][at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for row, at in enumerate(last)]
    return StepTensors(
        token_ids=torch.tensor(contexts) * 11 % 256,
        paged=PagedStep(
            block_tables=torch.tensor(own, dtype=torch.int32),
            query_start=torch.arange(len(contexts) + 1, dtype=torch.int32),
            context_lens=torch.tensor(contexts, dtype=torch.int32),
            slots=torch.tensor(slots),
            positions=torch.tensor(contexts) - 1,
            max_query_len=1,
            max_context_len=max(contexts),
            num_decodes=len(contexts),
        ),
    )


STEPS = [decodes([3, 5]), decodes([4, 6]), decodes([8, 2], first_block=3), decodes([5]), mixed_step(), decodes([7, 7])]
"""Three of one shape in a row, whose recordings may be kept, and others between and after them."""


@torch.inference_mode()
def run_steps(decoder: Decoder, *, at_once: bool) -> list[Tensor]:
    kept, cache = decoder._at_once, cache_of(decoder)
    decoder._at_once = kept if at_once else None
    try:
        logits = [decoder.run(step, cache, torch.arange(len(step.token_ids))) for step in STEPS]
        return [*logits, *(tensor for pair in cache for tensor in pair)]
    finally:
        decoder._at_once = kept


@pytest.mark.parametrize("name", ["llama-gqa", "qwen3"])
def test_steps_of_one_shape_after_each_other_each_see_their_own_inputs(name: str, tmp_path: Path) -> None:
    decoder = decoder_of(name, tmp_path)
    expected = run_steps(decoder, at_once=False)
    for _ in range(2):  # over two caches
        assert all(torch.equal(*pair) for pair in zip(run_steps(decoder, at_once=True), expected, strict=True))


@torch.inference_mode()
def test_steps_of_one_shape_are_recorded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, counts, num_recorded = decoder_of("llama-gqa", tmp_path), [], 0
    forward = type(decoder._layers[0]).forward

    def counting(*args: Any, **options: Any) -> Any:
        nonlocal num_recorded
        num_recorded += 1
        return forward(*args, **options)

    monkeypatch.setattr(type(decoder._layers[0]), "forward", counting)
    cache = cache_of(decoder)
    for step in STEPS:
        decoder.forward(step, cache)
        counts.append(num_recorded)
    assert counts == [1, 1, 1, 2, 3, 4]


@torch.inference_mode()
def test_a_step_after_one_with_an_index_out_of_range_is_right(tmp_path: Path) -> None:
    decoder = decoder_of("llama-gqa", tmp_path)
    expected = run_steps(decoder, at_once=False)
    wrong = decodes([3, 5])
    wrong.paged.slots[1] = 8 * BLOCK_SIZE
    with pytest.raises(KernelInputError, match="slots in"):
        decoder.forward(wrong, cache_of(decoder))
    assert all(torch.equal(*pair) for pair in zip(run_steps(decoder, at_once=True), expected, strict=True))


@pytest.mark.parametrize("product", UNITS)
def test_one_call_gives_the_bits_of_layer_by_layer_by_any_unit(
    product: Product, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_weights, "choose_products", choice_of(product))
    decoder = decoder_of("qwen3", tmp_path)
    assert decoder.products == f"{product} (unasked)"
    expected = run(decoder, cache_of(decoder), at_once=False)
    actual = run(decoder, cache_of(decoder), at_once=True)
    assert all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))


def test_layers_that_one_product_of_torch_belongs_to_run_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_multiply(Product.ONEDNN, torch.bfloat16):
        pytest.skip("oneDNN has no bf16 products here")
    monkeypatch.setattr(layer_weights, "choose_products", choice_of(Product.ONEDNN))
    decoder = decoder_of("llama-tied-biased", tmp_path)
    assert decoder._at_once is None
    assert decoder.products == "onednn (unasked)"
    assert all(tensor.isfinite().all() for tensor in run(decoder, cache_of(decoder), at_once=True))


def choice_of(product: Product) -> Callable[..., ProductChoice]:
    return lambda shapes, dtype: ProductChoice(products=dict.fromkeys(shapes, product), origin="unasked")


def test_where_a_layer_or_cache_goes_through_torch_layers_run_one_by_one(tmp_path: Path) -> None:
    assert decoder_of("llama-gqa", tmp_path, torch.float16)._at_once is None
    decoder = decoder_of("llama-gqa", tmp_path)
    results = [run(decoder, cache_of(decoder, torch.float16), at_once=at_once) for at_once in (True, False)]
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize(
    ("name", "index", "wrong", "message"),
    [
        ("slots", 2, 8 * BLOCK_SIZE, "slots in"),
        ("positions", 2, 64, "positions must lie in"),
        ("block_tables", (0, 1), 8, "block_tables names a block outside"),
    ],
)
def test_an_index_out_of_range_is_named_by_its_op(
    name: str, index: object, wrong: int, message: str, tmp_path: Path
) -> None:
    decoder, step = decoder_of("llama-gqa", tmp_path), mixed_step()
    getattr(step.paged, name)[index] = wrong
    with torch.inference_mode(), pytest.raises(KernelInputError, match=message):
        decoder.forward(step, cache_of(decoder))
