"""PackedLinear against F.linear, packed and not."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch.nn import functional

from kernels import packed_linear
from kernels.errors import KernelInputError
from kernels.packed_linear import PackedLinear

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 1e-2}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("tokens", [0, 1, 3, 33])
def test_a_packed_product_equals_the_plain_one(tokens: int, has_bias: bool, dtype: torch.dtype) -> None:
    x, weight = torch.randn(tokens, 40).to(dtype), (torch.randn(56, 40) / 6).to(dtype)
    bias = torch.randn(56).to(dtype) if has_bias else None
    actual = PackedLinear(weight, bias)(x)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual, functional.linear(x, weight, bias), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_where_packing_is_impossible_the_plain_product_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "can_pack", lambda _: False)
    x, weight = torch.randn(2, 8), torch.randn(4, 8)
    layer = PackedLinear(weight, None)
    assert not layer.is_packed
    assert torch.equal(layer(x), functional.linear(x, weight))


@pytest.mark.skipif(not packed_linear.can_pack(torch.float32), reason="this torch has no packed products")
def test_packing_keeps_no_reference_to_the_weight() -> None:
    weight = torch.randn(16, 32)
    layer, reference = PackedLinear(weight, None), weakref.ref(weight)
    del weight
    gc.collect()
    assert layer.is_packed
    assert reference() is None


def test_a_bias_that_does_not_fit_is_named() -> None:
    with pytest.raises(KernelInputError, match="bias does not fit"):
        PackedLinear(torch.randn(4, 8), torch.randn(8))
