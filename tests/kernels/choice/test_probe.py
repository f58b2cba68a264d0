"""Tests of timing products: all of them, alternating, the shortest of several times, within a time limit."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.choice import probe
from kernels.choice.probe import time_products
from kernels.choice.weighing import WeightShape
from kernels.packed_linear import Product

LAYER = WeightShape(width=96, depth=64, count=30, is_in_layers=True)
HEAD = WeightShape(width=4800, depth=16, count=1, is_in_layers=False)
PRODUCTS = [Product.TILES, Product.DOTS, Product.ONEDNN]


class Machine:
    """Layers whose products take given times, on a clock that only they advance."""

    def __init__(self, seconds: dict[Product, Iterator[float]]) -> None:
        self.now = 0.0
        self.calls: list[tuple[Product, int]] = []
        self.weights: list[tuple[int, ...]] = []
        self._seconds = seconds

    def layer(self, weight: Tensor, bias: None, *, product: Product) -> Callable[[Tensor], None]:
        self.weights.append(tuple(weight.shape))

        def call(x: Tensor) -> None:
            self.calls.append((product, x.shape[0]))
            self.now += next(self._seconds[product]) * x.shape[0]

        return call

    def clock(self) -> float:
        return self.now


def machine(monkeypatch: pytest.MonkeyPatch, **seconds: Any) -> Machine:
    found = Machine({product: itertools.cycle(seconds[product.name]) for product in PRODUCTS})
    monkeypatch.setattr(probe, "PackedLinear", found.layer)
    return found


def test_the_shortest_of_several_calls_counts_over_as_much_work_as_there_is_time_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "_ELEMENTS", 16 * 480)
    noisy = machine(monkeypatch, TILES=[3, 1], DOTS=[4, 1.5], ONEDNN=[1.25])
    found = time_products([LAYER, HEAD], PRODUCTS, seconds=1e9, clock=noisy.clock)
    prompt = probe._PROMPT_ROWS
    assert found[LAYER] == {
        Product.TILES: {1: 1, 8: 8, 32: 32, 1024: prompt},
        Product.DOTS: {1: 1.5, 8: 12, 32: 48, 1024: 1.5 * prompt},
        Product.ONEDNN: {1: 1.25, 8: 10, 32: 40, 1024: 1.25 * prompt},
    }
    assert found[HEAD][Product.TILES] == {1: 1, 8: 8, 32: 32}
    assert noisy.weights == [(96, 64)] * 3 + [(480, 16)] * 3
    assert {rows for _, rows in noisy.calls} == {1, 8, 32, prompt}


def test_one_thread_is_timed_by_its_own_time_and_the_others_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    even = machine(monkeypatch, TILES=[1], DOTS=[1], ONEDNN=[1])

    def clock() -> float:
        seen.append(torch.get_num_threads())
        return even.now

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        time_products([HEAD], PRODUCTS, seconds=0.0, clock=clock)
        assert set(seen) == {1}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert time_products.__kwdefaults__ == {"clock": time.thread_time}


def test_products_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    even = machine(monkeypatch, TILES=[1], DOTS=[1], ONEDNN=[1])
    time_products([HEAD], PRODUCTS, seconds=1e9, clock=even.clock)
    of_one_row = [product for product, rows in even.calls if rows == 1]
    assert of_one_row == PRODUCTS * (len(of_one_row) // 3)
    assert len(of_one_row) > 3


def test_out_of_time_each_has_two_turns_and_the_hopeless_one(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = machine(monkeypatch, TILES=[2], DOTS=[1], ONEDNN=[50])
    time_products([HEAD], PRODUCTS, seconds=0.0, clock=slow.clock)
    calls = [product for product, rows in slow.calls if rows == 32]
    per_turn = probe._CALLS[32]
    assert [calls.count(product) for product in PRODUCTS] == [2 * per_turn, 2 * per_turn, per_turn]
    ample = machine(monkeypatch, TILES=[2], DOTS=[1], ONEDNN=[50])
    time_products([HEAD], PRODUCTS, seconds=1e9, clock=ample.clock)
    assert len(ample.calls) > len(slow.calls)
