"""Tests of a stored choice: the same for every later process, whatever it would measure."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from kernels.choice import kept
from kernels.choice.kept import keep
from kernels.choice.weighing import Choice, WeightShape
from kernels.packed_linear import Product

SHAPES = [
    WeightShape(width=960, depth=576, count=30, is_in_layers=True),
    WeightShape(width=49152, depth=576, count=1, is_in_layers=False),
]


def choose(product: Product) -> Callable[[], Choice]:
    return lambda: dict.fromkeys(SHAPES, product)


def never() -> Choice:
    raise AssertionError("measured again")


def test_the_first_choice_stands_for_later_starts(tmp_path: Path) -> None:
    first = {SHAPES[0]: Product.MULTIPLY_ADDS, SHAPES[1]: Product.DOTS}
    assert keep(tmp_path, SHAPES, lambda: first) == (first, False)
    assert keep(tmp_path, SHAPES, never) == (first, True)


def test_other_weights_or_another_machine_have_a_choice_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path, SHAPES, choose(Product.DOTS))
    assert keep(tmp_path, SHAPES[:1], lambda: {SHAPES[0]: Product.TILES}) == ({SHAPES[0]: Product.TILES}, False)
    monkeypatch.setattr(kept, "machine", lambda: {"cpu": "another"})
    assert keep(tmp_path, SHAPES, choose(Product.ONEDNN)) == (choose(Product.ONEDNN)(), False)
    monkeypatch.undo()
    assert keep(tmp_path, SHAPES, never)[0] == choose(Product.DOTS)()


def test_weights_of_an_encoder_have_a_choice_of_their_own(tmp_path: Path) -> None:
    encoders = [replace(shape, has_steps=False) for shape in SHAPES]
    own = dict.fromkeys(encoders, Product.TILES)
    keep(tmp_path, SHAPES, choose(Product.DOTS))
    assert keep(tmp_path, encoders, lambda: own) == (own, False)


def test_a_release_that_weighs_otherwise_measures_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path, SHAPES, choose(Product.DOTS))
    monkeypatch.setattr(kept, "weighed_by", lambda: "another")
    assert keep(tmp_path, SHAPES, choose(Product.TILES)) == (choose(Product.TILES)(), False)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: "",
        lambda content: content[: len(content) // 2],
        lambda content: "[1]",
        lambda content: json.dumps(json.loads(content) | {"products": ["dots"]}),
        lambda content: json.dumps(json.loads(content) | {"products": ["dots", "fingers"]}),
        lambda content: json.dumps(json.loads(content) | {"products": 7}),
        lambda content: json.dumps(json.loads(content) | {"machine": {"cpu": "another"}}),
        lambda content: json.dumps({"products": ["dots", "dots"]}),
    ],
)
def test_a_file_that_is_broken_or_foreign_is_measured_for_again(tmp_path: Path, spoil: Callable[[str], str]) -> None:
    keep(tmp_path, SHAPES, choose(Product.DOTS))
    [path] = tmp_path.glob("*.json")
    path.write_text(spoil(path.read_text()))
    assert keep(tmp_path, SHAPES, choose(Product.TILES)) == (choose(Product.TILES)(), False)
    assert keep(tmp_path, SHAPES, never) == (choose(Product.TILES)(), True)


def test_bytes_that_are_no_text_are_measured_for_again(tmp_path: Path) -> None:
    keep(tmp_path, SHAPES, choose(Product.DOTS))
    [path] = tmp_path.glob("*.json")
    path.write_bytes(b"\xff\xfe\x00")
    assert keep(tmp_path, SHAPES, choose(Product.TILES)) == (choose(Product.TILES)(), False)


def test_a_product_that_is_not_there_any_more_is_measured_for_again(tmp_path: Path) -> None:
    keep(tmp_path, SHAPES, choose(Product.TILES))
    found = keep(tmp_path, SHAPES, choose(Product.DOTS), is_usable=lambda product: product is not Product.TILES)
    assert found == (choose(Product.DOTS)(), False)


def test_where_nothing_can_be_written_the_choice_is_used_all_the_same(tmp_path: Path) -> None:
    assert keep(tmp_path / "missing", SHAPES, choose(Product.DOTS)) == (choose(Product.DOTS)(), False)


def test_starts_at_the_same_time_agree_and_one_of_them_measures(tmp_path: Path) -> None:
    others_wait, measured = threading.Barrier(4), []

    def start(product: Product) -> Choice:
        def measure() -> Choice:
            measured.append(product)
            return dict.fromkeys(SHAPES, product)

        others_wait.wait()
        return keep(tmp_path, SHAPES, measure)[0]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(start, [Product.DOTS, Product.TILES, Product.ONEDNN, Product.MULTIPLY_ADDS]))
    assert len(measured) == 1
    assert found == [dict.fromkeys(SHAPES, measured[0])] * 4
    assert not list(tmp_path.glob("*.new"))


def test_a_start_does_not_wait_for_ever_for_another_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_LOCK_SECONDS", 0.05)
    hangs, is_measuring = threading.Event(), threading.Event()

    def hang() -> Choice:
        is_measuring.set()
        hangs.wait(30)
        return choose(Product.DOTS)()

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(keep, tmp_path, SHAPES, hang)
        assert is_measuring.wait(30)
        second = keep(tmp_path, SHAPES, choose(Product.TILES))
        hangs.set()
        assert second == (choose(Product.TILES)(), False)
        assert first.result(30) == (choose(Product.TILES)(), True), "what was kept first stands"
