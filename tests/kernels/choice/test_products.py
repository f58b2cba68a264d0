"""Tests of choosing the product for a model's weights: measured once, found again, skipped where irrelevant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.choice import products as module
from kernels.choice.products import ProductChoice, choose_products
from kernels.choice.weighing import Times, WeightShape
from kernels.grouped_weight import Layout
from kernels.packed_linear import Product, best_product, can_multiply

LAYER = WeightShape(width=1056, depth=512, count=2, is_in_layers=True)
HEAD = WeightShape(width=2048, depth=512, count=1, is_in_layers=False)
SMALL = WeightShape(width=64, depth=48, count=3, is_in_layers=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "cache_directory", lambda: tmp_path)
    return tmp_path


def test_a_choice_is_measured_once_and_found_by_the_next_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = choose_products([LAYER, HEAD], torch.bfloat16)
    assert first.origin == "measured"
    assert all(can_multiply(product, torch.bfloat16) for product in first.products.values())
    monkeypatch.setattr(module, "time_products", None)
    again = choose_products([LAYER, HEAD], torch.bfloat16)
    assert (again.products, again.origin) == (first.products, "kept")
    assert again.of(1056, 512) is first.products[LAYER]
    assert again.of(7, 512) is None


@pytest.mark.parametrize(
    ("layer", "head", "expected"),
    [
        (Product.MULTIPLY_ADDS, Product.MULTIPLY_ADDS, True),
        (Product.MULTIPLY_ADDS, Product.DOTS, True),
        (Product.DOTS, Product.MULTIPLY_ADDS, False),
    ],
)
def test_attention_goes_by_what_multiplies_the_layers(layer: Product, head: Product, expected: bool) -> None:
    mixed = {LAYER: layer, SMALL: Product.DOTS}
    assert ProductChoice(products={LAYER: layer, HEAD: head}, origin="kept").is_in_float32 is expected
    assert not ProductChoice(products=mixed, origin="kept").is_in_float32


def test_small_models_and_other_dtypes_take_what_is_used_unasked(folder: Path) -> None:
    for shapes, dtype in (([SMALL], torch.bfloat16), ([LAYER, HEAD], torch.float32), ([LAYER], torch.float16)):
        found = choose_products(shapes, dtype)
        assert found.origin == "unasked"
        assert set(found.products.values()) == {best_product(dtype)}
    assert list(folder.iterdir()) == []


def test_where_there_is_no_folder_the_choice_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cache_directory", lambda: None)
    assert choose_products([LAYER, HEAD], torch.bfloat16).origin == "measured"


@pytest.mark.skipif(not can_multiply(Product.INT8, torch.bfloat16), reason="this CPU keeps no weight packed")
def test_whole_numbers_are_chosen_for_decode_steps_of_weights_with_one_scale_a_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def quicker_later(
        shapes: Sequence[WeightShape], products: Sequence[Product], *, seconds: float
    ) -> dict[WeightShape, dict[Product, Times]]:
        return {
            shape: {product: dict.fromkeys(shape.shares, 0.5**at) for at, product in enumerate(products)}
            for shape in shapes
        }

    monkeypatch.setattr(module, "cache_directory", lambda: None)
    monkeypatch.setattr(module, "time_products", quicker_later)
    one, two = (
        replace(LAYER, count=4, layout=Layout(bits=8, scale_bytes=4, has_minima=False, scaled=scaled))
        for scaled in (32, 16)
    )
    of_texts = replace(one, width=768, has_steps=False)
    products = choose_products([one, two, of_texts], torch.bfloat16).products
    assert products[one] is Product.INT8
    assert products[two].unit is not None
    assert products[of_texts].unit is not None


def test_the_choice_is_named_in_a_line() -> None:
    same = ProductChoice(products=dict.fromkeys([LAYER, HEAD], Product.DOTS), origin="kept")
    assert str(same) == "dots (kept)"
    mixed = ProductChoice(products={LAYER: Product.MULTIPLY_ADDS, HEAD: Product.DOTS}, origin="measured")
    assert str(mixed) == "512 → 1056 multiply-adds, 512 → 2048 dots (measured)"
