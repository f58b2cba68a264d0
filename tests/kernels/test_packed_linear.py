"""PackedLinear against F.linear in each layout that this machine can hold."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch.nn import functional

from kernels import packed_linear
from kernels.cpu import gemm
from kernels.errors import KernelInputError
from kernels.packed_linear import Layout, PackedLinear, padded_rows

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 1e-2}


def allow_only(monkeypatch: pytest.MonkeyPatch, layout: Layout) -> None:
    """Let layers find no layout but `layout` and the plain one."""
    if layout is not Layout.PANELS:
        monkeypatch.setattr(gemm, "can_multiply", lambda: False)
    if layout is not Layout.ONEDNN:
        monkeypatch.setattr(packed_linear, "can_pack", lambda _: False)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("tokens", [0, 1, 3, 33])
@pytest.mark.parametrize("layout", Layout)
def test_every_layout_equals_the_plain_product(
    monkeypatch: pytest.MonkeyPatch, layout: Layout, tokens: int, has_bias: bool, dtype: torch.dtype
) -> None:
    allow_only(monkeypatch, layout)
    x, weight = torch.randn(tokens, 40).to(dtype), (torch.randn(56, 40) / 6).to(dtype)
    bias = torch.randn(56).to(dtype) if has_bias else None
    actual = PackedLinear(weight, bias)(x)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual, functional.linear(x, weight, bias), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_where_packing_is_impossible_the_plain_product_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_only(monkeypatch, Layout.PLAIN)
    x, weight = torch.randn(2, 8).bfloat16(), torch.randn(4, 8).bfloat16()
    layer = PackedLinear(weight, None)
    assert layer.layout is Layout.PLAIN
    assert torch.equal(layer(x), functional.linear(x, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packing_keeps_no_reference_to_the_weight(dtype: torch.dtype) -> None:
    weight = torch.randn(16, 32).to(dtype)
    layer, reference = PackedLinear(weight, None), weakref.ref(weight)
    if layer.layout is Layout.PLAIN:
        pytest.skip("this machine has no packed products")
    del weight
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("layout", [Layout.PLAIN, Layout.PANELS])
def test_rows_of_the_weight_are_read_bit_for_bit(monkeypatch: pytest.MonkeyPatch, layout: Layout) -> None:
    allow_only(monkeypatch, layout)
    weight, ids = torch.randn(101, 7).bfloat16(), torch.tensor([0, 100, 47, 48, 0])
    layer = PackedLinear(weight, None)
    assert layer.has_rows
    assert torch.equal(layer.rows(ids), weight[ids])
    assert layer.rows(ids[:0]).shape == (0, 7)
    for wrong in (-1, 101):
        with pytest.raises((KernelInputError, IndexError), match="range"):
            layer.rows(torch.tensor([3, wrong]))


def test_a_bias_or_an_input_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelInputError, match="bias does not fit"):
        PackedLinear(torch.randn(4, 8), torch.randn(8))
    layer = PackedLinear(torch.randn(4, 8).bfloat16(), None)
    if layer.layout is Layout.PLAIN:
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
    weight, x = torch.randn(24, 40), torch.randn(rows, 40)
    product = PackedLinear(weight, None)(x)
    assert product.shape == (rows, 24)
    torch.testing.assert_close(product, functional.linear(x, weight), rtol=1e-4, atol=1e-4)
