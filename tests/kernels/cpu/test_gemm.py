"""Tests of every unit's compiled products against torch's in fp32: odd shapes first, NaN where nothing may be read."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from numba.core import config
from torch import Tensor
from torch.nn import functional

from kernels.cpu.gemm import host as gemm
from kernels.cpu.gemm.host import Unit
from kernels.cpu.gemm.panels import pack, pack_bias
from kernels.cpu.runtime import amx

pytestmark = pytest.mark.comparison

ROWS = [0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 128]
ROOT = Path(__file__).resolve().parents[3]

KINDS = [*((unit, torch.bfloat16) for unit in Unit), (Unit.MULTIPLY_ADDS, torch.float32)]


@dataclass(frozen=True, slots=True)
class Linear:
    """A unit, and the dtype of its factors."""

    unit: Unit
    dtype: torch.dtype

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, dtype: torch.dtype | None = None
    ) -> Tensor:
        width = weight.shape[0]
        return gemm.linear(x, pack(weight), pack_bias(bias, width), width, unit=self.unit, dtype=dtype)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape).to(self.dtype)

    def weight(self, width: int, depth: int) -> Tensor:
        weight: Tensor = torch.randn(width, depth) / depth**0.5
        return weight.to(self.dtype)


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0]} of {kind[1]}")
def linear(request: pytest.FixtureRequest) -> Linear:
    unit, dtype = request.param
    if not gemm.can_multiply(unit, dtype):
        pytest.skip(f"this CPU, or numba's LLVM, has no {unit} of {dtype}")
    return Linear(unit, dtype)


def close(actual: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """Compare with the product in fp32, allowing fp32's own error, and in bf16 one rounding."""
    expected = functional.linear(x.float(), weight.float(), None if bias is None else bias.float())
    rounding = 2**-8 if actual.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(actual.float(), expected, rtol=rounding, atol=1e-4 if rounding > 1e-4 else 1e-5)


@pytest.mark.parametrize("depth", [1, 7, 33, 130, 576, 1536, 2500])
@pytest.mark.parametrize("width", [1, 15, 48, 49, 960])
def test_a_product_equals_the_one_in_fp32(linear: Linear, width: int, depth: int) -> None:
    weight, bias = linear.weight(width, depth), linear.random(width)
    for rows in ROWS:
        x = linear.random(rows, depth)
        close(linear(x, weight, bias), x, weight, bias)
        close(linear(x, weight), x, weight)


@pytest.mark.parametrize("depth", [1, 33, 576])
@pytest.mark.parametrize("width", [1, 17, 48, 49, 145])
def test_sums_in_fp32_are_those_that_are_rounded_otherwise(linear: Linear, width: int, depth: int) -> None:
    weight, bias = linear.weight(width, depth), linear.random(width)
    for rows in ROWS:
        x = linear.random(rows, depth)
        sums = linear(x, weight, bias, dtype=torch.float32)
        assert sums.dtype == torch.float32
        torch.testing.assert_close(
            sums, functional.linear(x.float(), weight.float(), bias.float()), rtol=1e-5, atol=1e-5
        )
        assert torch.equal(sums.to(linear.dtype), linear(x, weight, bias))


@pytest.mark.parametrize("depth", [33, 1536, 2500])
@pytest.mark.parametrize("num_threads", [1, 2, 7])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(linear: Linear, depth: int, num_threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        x, weight = linear.random(131, depth), linear.weight(100, depth)
        together = linear(x, weight)
        for rows in range(1, 65):
            assert torch.equal(linear(x[:rows], weight), together[:rows])
        assert torch.equal(torch.cat([linear(row[None], weight) for row in x]), together)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("depth", [7, 32])
def test_rows_with_a_stride_are_read_where_they_lie(linear: Linear, depth: int) -> None:
    wide, weight = torch.full((9, 3 * depth + 1), torch.nan).to(linear.dtype), linear.weight(49, depth)
    x = wide[:, depth : 2 * depth]
    x.copy_(torch.randn(9, depth))
    close(linear(x, weight), x, weight)
    close(linear(x[::2], weight), x[::2], weight)
    close(linear(x[:depth].T.contiguous().T[:7], weight), x[:7], weight)


@pytest.mark.parametrize("depth", [5, 8])
def test_a_nan_or_infinity_stays_in_its_row_or_column(linear: Linear, depth: int) -> None:
    x, weight = linear.random(10, depth), linear.weight(50, depth).abs() + 1
    x[3, -1], x[5, 0], weight[49, 2] = torch.nan, torch.inf, torch.nan
    actual = linear(x, weight)
    assert actual[3].isnan().all()
    assert actual[:, 49].isnan().all()
    assert actual[5, :49].isposinf().all()
    rest = torch.ones(10, 50, dtype=torch.bool)
    rest[3], rest[5], rest[:, 49] = False, False, False
    assert actual[rest].isfinite().all()


def test_sums_are_rounded_to_nearest_even(linear: Linear) -> None:
    if linear.dtype == torch.float32:
        pytest.skip("nothing is rounded")
    ones = torch.tensor([[1.0, 1.0]]).bfloat16()
    weight = torch.tensor([[1.0, 2**-8], [1 + 2**-7, 2**-8], [1.0, 2**-8 + 2**-15]]).bfloat16()
    assert linear(ones, weight).tolist() == [[1.0, 1 + 2**-6, 1 + 2**-7]]


@pytest.mark.parametrize(("rows", "panels"), [(1, 1), (31, 1), (64, 1), (512, 3), (512, 1000), (5, 0)])
@pytest.mark.parametrize("num_threads", [1, 2, 64])
@pytest.mark.parametrize("at_once", [8, 32])
def test_tasks_cover_all_rows_in_whole_groups(
    monkeypatch: pytest.MonkeyPatch, rows: int, panels: int, num_threads: int, at_once: int
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    run = gemm.rows_per_task(rows, panels, at_once)
    assert run % at_once == 0
    assert run >= min(rows, 32)
    assert panels * -(-rows // run) <= max(panels, 4 * num_threads + panels)


@pytest.mark.parametrize(
    ("features", "missing"),
    [
        ("+sse2", set(Unit)),
        ("+avx2,+fma", {Unit.DOTS, Unit.TILES}),
        ("-avx512bf16,+avx512f,+avx2,+fma", {Unit.DOTS, Unit.TILES}),
        ("+avx512bf16,+avx512f,-amx-bf16,+avx2,+fma", {Unit.TILES}),
    ],
)
def test_what_the_cpu_is_not_to_have_is_not_used(
    monkeypatch: pytest.MonkeyPatch, features: str, missing: set[Unit]
) -> None:
    monkeypatch.setattr(config, "CPU_FEATURES", features)
    monkeypatch.setattr(amx, "can_use", amx.can_use.__wrapped__)  # otherwise asked only once
    assert not any(gemm._IS_THERE[unit]() for unit in missing)


SCRIPT = """
import hashlib
import torch
from kernels.cpu.gemm.host import Unit, can_multiply, linear
from kernels.cpu.gemm.panels import pack, pack_bias

torch.manual_seed(0)
for dtype in (torch.bfloat16, torch.float32):
    assert can_multiply(Unit.MULTIPLY_ADDS, dtype)
    for width, depth in ((101, 300), (48, 33), (7, 576), (60, 1030)):
        x, weight = torch.randn(13, depth).to(dtype), torch.randn(width, depth).to(dtype)
        product = linear(x, pack(weight), pack_bias(None, width), width, unit=Unit.MULTIPLY_ADDS)
        print(hashlib.sha256(product.view(torch.uint8).numpy().tobytes()).hexdigest())
"""


@pytest.mark.skipif(
    not gemm.can_multiply(Unit.MULTIPLY_ADDS, torch.float32), reason="this CPU has no fused multiply-adds"
)
def test_multiply_adds_have_the_same_bits_on_cpus_of_half_the_vectors() -> None:
    narrow = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+f16c,+sse4.2,+bmi,+bmi2"}
    widest = digests({})
    assert len(widest) == 8
    assert digests(narrow) == widest


def digests(environment: dict[str, str]) -> list[str]:
    command = [sys.executable, "-c", SCRIPT]
    environment = os.environ | environment | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout.split()
