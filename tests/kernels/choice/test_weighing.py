"""Tests of the product that times select: not for a small gain, and not by the rows of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernels.choice.weighing import Times, WeightShape, relative, weigh
from kernels.packed_linear import Product

LAYER = WeightShape(width=960, depth=576, count=30, is_in_layers=True)
HEAD = WeightShape(width=49152, depth=576, count=1, is_in_layers=False)


def times(decode: float, prompt: float) -> Times:
    return {1: decode, 8: decode * 8, 32: decode * 32, 1024: prompt * 1024}


def chosen(*found: Times, shape: WeightShape = LAYER) -> Product:
    return weigh(shape, dict(zip((Product.TILES, Product.DOTS, Product.MULTIPLY_ADDS), found, strict=False)))


def test_a_product_that_is_a_little_faster_is_not_chosen() -> None:
    assert chosen(times(1, 1), times(0.92, 0.92)) is Product.TILES
    assert chosen(times(1, 1), times(0.89, 0.89)) is Product.DOTS
    assert chosen(times(1, 1), times(3, 3)) is Product.TILES
    assert chosen(times(1, 1)) is Product.TILES


def test_the_fastest_of_several_is_chosen() -> None:
    assert chosen(times(1, 1), times(0.8, 0.8), times(0.5, 0.6)) is Product.MULTIPLY_ADDS
    assert chosen(times(1, 1), times(0.5, 0.6), times(0.8, 0.8)) is Product.DOTS


def test_decodes_and_prompts_count_by_their_shares_of_time() -> None:
    one, other = times(1, 1), times(1, 0.5)
    assert relative(other, one, LAYER.shares) == pytest.approx(0.65 + 0.35 * 0.5)
    assert relative(other, one, HEAD.shares) == pytest.approx(1.0)
    assert chosen(one, times(2, 0.1)) is Product.TILES, "a tenth of a prompt's time is not worth twice a decode's"


def test_an_output_matrix_is_not_weighed_by_prompts() -> None:
    assert chosen(times(1, 1), times(0.95, 0.1), shape=LAYER) is Product.DOTS
    assert chosen(times(1, 1), times(0.95, 0.1), shape=HEAD) is Product.TILES


def test_an_encoders_weights_are_weighed_by_whole_texts_alone() -> None:
    encoders = replace(LAYER, has_steps=False)
    assert set(encoders.shares) == {1024}
    assert chosen(times(1, 1), times(2, 0.5), shape=LAYER) is Product.TILES
    assert chosen(times(1, 1), times(2, 0.5), shape=encoders) is Product.DOTS
