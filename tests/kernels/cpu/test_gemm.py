"""The compiled bf16 products against fp32 ones: odd shapes first, NaN wherever nothing must be read."""

from __future__ import annotations

import pytest
import torch
from numba.core import config
from torch import Tensor
from torch.nn import functional

from kernels.cpu import gemm
from kernels.cpu.runtime import amx

pytestmark = pytest.mark.skipif(
    not gemm.can_multiply(), reason="this CPU, or numba's LLVM, has no bf16 dot product (AVX512-BF16)"
)

ROWS = [0, 1, 2, 3, 7, 8, 9, 31, 32, 49, 128]


@pytest.fixture(autouse=True, params=["dot products", "tiles"])
def instruction(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply by AVX512-BF16's dot products, then by AMX where this CPU has it."""
    if request.param == "dot products":
        monkeypatch.setattr(amx, "can_use", lambda: False)
    elif not amx.can_use():
        pytest.skip("this CPU or system has no AMX for bf16")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    width = weight.shape[0]
    return gemm.linear(x, gemm.pack(weight), gemm.pack_bias(bias, width), width)


def weight_of(width: int, depth: int) -> Tensor:
    weight: Tensor = torch.randn(width, depth) / depth**0.5
    return weight.bfloat16()


def close(actual: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """Compare with the product in fp32, allowing one rounding to bf16 and fp32's own error."""
    expected = functional.linear(x.float(), weight.float(), None if bias is None else bias.float())
    torch.testing.assert_close(actual.float(), expected, rtol=2**-8, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("depth", [1, 7, 33, 576, 1536])
@pytest.mark.parametrize("width", [1, 15, 48, 49, 960])
def test_a_product_equals_the_one_in_fp32_rounded_once(width: int, depth: int) -> None:
    weight, bias = weight_of(width, depth), torch.randn(width).bfloat16()
    for rows in ROWS:
        x = torch.randn(rows, depth).bfloat16()
        close(linear(x, weight, bias), x, weight, bias)
        close(linear(x, weight), x, weight)


@pytest.mark.parametrize("depth", [33, 1536])
@pytest.mark.parametrize("num_threads", [1, 2, 7])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(depth: int, num_threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        x, weight = torch.randn(131, depth).bfloat16(), weight_of(100, depth)
        together = linear(x, weight)
        for rows in range(1, 18):
            assert torch.equal(linear(x[:rows], weight), together[:rows])
        assert torch.equal(torch.cat([linear(row[None], weight) for row in x]), together)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("depth", [7, 32])
def test_rows_with_a_stride_are_read_where_they_lie(depth: int) -> None:
    wide, weight = torch.full((9, 3 * depth + 1), torch.nan).bfloat16(), weight_of(49, depth)
    x = wide[:, depth : 2 * depth]
    x.copy_(torch.randn(9, depth))
    close(linear(x, weight), x, weight)
    close(linear(x[::2], weight), x[::2], weight)
    close(linear(x[:depth].T.contiguous().T[:7], weight), x[:7], weight)


@pytest.mark.parametrize("depth", [5, 8])
def test_a_nan_or_infinity_stays_in_its_row_or_column(depth: int) -> None:
    x, weight = torch.randn(10, depth).bfloat16(), weight_of(50, depth).abs() + 1
    x[3, -1], x[5, 0], weight[49, 2] = torch.nan, torch.inf, torch.nan
    actual = linear(x, weight)
    assert actual[3].isnan().all()
    assert actual[:, 49].isnan().all()
    assert actual[5, :49].isposinf().all()
    rest = torch.ones(10, 50, dtype=torch.bool)
    rest[3], rest[5], rest[:, 49] = False, False, False
    assert actual[rest].isfinite().all()


def test_sums_are_rounded_to_nearest_even() -> None:
    ones = torch.tensor([[1.0, 1.0]]).bfloat16()
    weight = torch.tensor([[1.0, 2**-8], [1 + 2**-7, 2**-8], [1.0, 2**-8 + 2**-15]]).bfloat16()
    assert linear(ones, weight).tolist() == [[1.0, 1 + 2**-6, 1 + 2**-7]]


@pytest.mark.parametrize(("rows", "panels"), [(1, 1), (31, 1), (64, 1), (512, 3), (512, 1000), (5, 0)])
@pytest.mark.parametrize("num_threads", [1, 2, 64])
def test_tasks_cover_all_rows_in_whole_groups_of_eight(
    monkeypatch: pytest.MonkeyPatch, rows: int, panels: int, num_threads: int
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    run = gemm._rows_per_task(rows, panels)
    assert run % 8 == 0
    assert run >= min(rows, 32)
    assert panels * -(-rows // run) <= max(panels, 4 * num_threads + panels)


@pytest.mark.parametrize("features", ["+sse2", "-avx512bf16,+sse2"])
def test_where_the_cpu_is_to_be_another_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch, features: str) -> None:
    monkeypatch.setattr(config, "CPU_FEATURES", features)
    gemm.can_multiply.cache_clear()
    try:
        assert not gemm.can_multiply()
    finally:
        gemm.can_multiply.cache_clear()
