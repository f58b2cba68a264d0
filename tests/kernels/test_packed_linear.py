"""Tests of PackedLinear against F.linear, with each product that this machine supports."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from kernels import packed_linear
from kernels.cpu.gemm import panels, sums
from kernels.errors import KernelInputError
from kernels.packed_linear import PackedLinear, Product, best_product, can_multiply, padded_rows, products_for

pytestmark = pytest.mark.comparison

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 1e-2}


PRODUCTS = [
    (product, dtype)
    for product in Product
    for dtype in TOLERANCE
    if product is not Product.INT8
    and (dtype == torch.bfloat16 or not product.unit or (product, dtype) == (Product.MULTIPLY_ADDS, torch.float32))
]


def require_product(product: Product, dtype: torch.dtype) -> None:
    if not can_multiply(product, dtype):
        pytest.skip(f"this machine has no {product} for {dtype}")


@pytest.mark.parametrize(("product", "dtype"), PRODUCTS)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("tokens", [0, 1, 3, 33])
def test_every_product_equals_the_plain_one(product: Product, tokens: int, has_bias: bool, dtype: torch.dtype) -> None:
    require_product(product, dtype)
    x, weight = torch.randn(tokens, 40).to(dtype), (torch.randn(56, 40) / 6).to(dtype)
    bias = torch.randn(56).to(dtype) if has_bias else None
    actual = PackedLinear(weight, bias, product=product)(x)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual, functional.linear(x, weight, bias), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("product", [product for product in Product if product.unit])
def test_panels_tell_sums_apart_that_are_one_number_in_bf16(product: Product) -> None:
    require_product(product, torch.bfloat16)
    layer = PackedLinear(torch.tensor([[25.0, 0.0], [25.0, 0.046875]]).bfloat16(), None, product=product)
    ones = torch.ones(1, 2).bfloat16()
    assert layer.unrounded(ones).tolist() == [[25.0, 25.046875]]
    assert layer(ones).tolist() == [[25.0, 25.0]]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_first_product_is_used_unasked_and_every_one_is_there(dtype: torch.dtype) -> None:
    products = list(products_for(dtype))
    assert best_product(dtype) is products[0] is PackedLinear(torch.randn(4, 8).to(dtype), None).product
    assert all(can_multiply(product, dtype) for product in products)


def test_a_whole_weight_is_not_multiplied_as_whole_numbers() -> None:
    with pytest.raises(KernelInputError, match="int8"):
        PackedLinear(torch.randn(4, 32), None, product=Product.INT8)


def test_where_packing_is_impossible_the_plain_product_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "can_multiply", lambda product, dtype: False)
    x, weight = torch.randn(2, 8).bfloat16(), torch.randn(4, 8).bfloat16()
    layer = PackedLinear(weight, None)
    assert layer.product is Product.PLAIN
    assert torch.equal(layer(x), functional.linear(x, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packing_keeps_no_reference_to_the_weight(dtype: torch.dtype) -> None:
    weight = torch.randn(16, 32).to(dtype)
    layer, reference = PackedLinear(weight, None), weakref.ref(weight)
    if layer.product is Product.PLAIN:
        pytest.skip("this machine has no packed products")
    del weight
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize(("product", "dtype"), PRODUCTS)
def test_rows_of_the_weight_are_read_bit_for_bit(product: Product, dtype: torch.dtype) -> None:
    require_product(product, dtype)
    weight, ids = torch.randn(101, 7).to(dtype), torch.tensor([0, 100, 47, 48, 0])
    layer = PackedLinear(weight, None, product=product)
    assert layer.has_rows is (product is not Product.ONEDNN)
    if not layer.has_rows:
        return
    assert torch.equal(layer.rows(ids), weight[ids])
    assert layer.rows(ids[:0]).shape == (0, 7)
    for same in (ids.int(), ids.repeat_interleave(2)[::2]):
        assert torch.equal(layer.rows(same), weight[ids])
    for wrong in (-1, 101):
        with pytest.raises((KernelInputError, IndexError), match="range"):
            layer.rows(torch.tensor([3, wrong]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_is_packed_wherever_it_lies(dtype: torch.dtype) -> None:
    numbers = torch.randn(97 * 8).to(dtype)
    weights = [numbers[1 : 1 + 96 * 8].view(96, 8), numbers[: 96 * 8].view(8, 96).T, numbers.view(97, 8)[:, ::2]]
    for weight in weights:
        layer = PackedLinear(weight, None)
        if not layer.has_rows:
            pytest.skip("this machine's products are oneDNN's")
        assert torch.equal(layer.rows(torch.arange(len(weight))), weight)


def test_a_bias_or_an_input_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelInputError, match="bias does not fit"):
        PackedLinear(torch.randn(4, 8), torch.randn(8))
    layer = PackedLinear(torch.randn(4, 8).bfloat16(), None)
    if layer.product is Product.PLAIN:
        pytest.skip("F.linear has its own words")
    with pytest.raises(KernelInputError, match=r"x is torch.bfloat16 \(2, 7\); give torch.bfloat16 \[tokens, 8\]"):
        layer(torch.randn(2, 7).bfloat16())


def test_onednn_meets_few_numbers_of_rows_and_none_is_padded_by_much() -> None:
    sizes = {rows: padded_rows(rows) for rows in range(1, 4097)}
    assert all(rows <= padded <= rows * 1.125 for rows, padded in sizes.items())
    assert all(sizes[rows] == rows for rows in range(1, 17))
    assert len(set(sizes.values())) <= 8 * 10


@pytest.mark.parametrize("rows", [17, 33, 100])
def test_padded_rows_leave_no_trace(rows: int) -> None:
    require_product(Product.ONEDNN, torch.float32)
    weight, x = torch.randn(24, 40), torch.randn(rows, 40)
    product = PackedLinear(weight, None, product=Product.ONEDNN)(x)
    assert product.shape == (rows, 24)
    torch.testing.assert_close(product, functional.linear(x, weight), rtol=1e-4, atol=1e-4)


def test_of_a_weight_that_fills_no_panel_only_the_last_rows_are_copied_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    padded: list[int] = []

    def pad(tensor: torch.Tensor, widths: tuple[int, ...]) -> torch.Tensor:
        padded.append(tensor.shape[0])
        return functional.pad(tensor, widths)

    monkeypatch.setattr(panels, "functional", SimpleNamespace(pad=pad))
    packed = panels.pack(torch.randn(101, 8))
    assert (packed.shape[0], padded) == (3, [5])


@pytest.mark.parametrize("shape", [(0, 8), (8, 0)])
def test_a_weight_without_numbers_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(KernelInputError, match=r"give \[out, in\], neither of them 0"):
        PackedLinear(torch.zeros(shape), None)


def test_fp32_is_always_worth_having(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "is_wide", lambda: False)
    assert packed_linear.has_cpu_products(torch.float32)
