"""Tests of products of packed weights: the bits of the widened weight, or of exact sums of whole numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.cpu.gemm import host as gemm
from kernels.cpu.gemm.host import Unit
from kernels.errors import KernelInputError
from kernels.grouped_linear import GroupedLinear, grouped_linear
from kernels.grouped_weight import GroupedWeight, Layout, filled, join
from kernels.packed_linear import PackedLinear, Product, can_multiply
from tests.kernels.cpu.grouped_weights import LAYOUTS, SHARED, SPLIT, random_weight

pytestmark = [
    pytest.mark.comparison,
    pytest.mark.skipif(not can_multiply(Product.INT8, torch.bfloat16), reason="this CPU keeps no weight packed"),
]

ROOT = Path(__file__).resolve().parents[3]
UNITS = [(unit, dtype) for unit in Unit for dtype in (torch.bfloat16, torch.float32) if gemm.can_multiply(unit, dtype)]
PRODUCT_OF = {product.unit: product for product in Product if product.unit}

each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=str)


@each_layout
@pytest.mark.parametrize(("unit", "dtype"), UNITS, ids=str)
def test_a_unit_gives_the_bits_of_the_weight_widened_at_load(unit: Unit, dtype: torch.dtype, layout: Layout) -> None:
    for width, depth in ((101, 96), (48, 32), (7, 1056)):
        weight, bias, product = random_weight(layout, width, depth), torch.randn(width).to(dtype), PRODUCT_OF[unit]
        packed = GroupedLinear(weight, bias, dtype=dtype, product=product)
        whole = PackedLinear(weight.widened().to(dtype), bias, product=product)
        for rows in (0, 1, 9, 40):
            x = torch.randn(rows, depth).to(dtype)
            assert torch.equal(packed(x), whole(x))
            assert torch.equal(packed.unrounded(x), whole.unrounded(x))


@pytest.mark.parametrize("layout", [*SHARED, *SPLIT], ids=str)
@pytest.mark.parametrize(("unit", "dtype"), UNITS, ids=str)
def test_scales_of_more_or_fewer_numbers_than_a_group_give_those_bits_too(
    unit: Unit, dtype: torch.dtype, layout: Layout
) -> None:
    weight, x, product = random_weight(layout, 101, 384), torch.randn(9, 384).to(dtype), PRODUCT_OF[unit]
    assert weight.layout == layout
    packed = GroupedLinear(weight, None, dtype=dtype, product=product)
    whole = PackedLinear(weight.widened().to(dtype), None, product=product)
    assert torch.equal(packed(x), whole(x))
    ids = torch.tensor([100, 0, 48])
    assert torch.equal(packed.rows(ids), weight.widened().to(dtype)[ids])
    assert packed.num_bytes == sum(
        part.nbytes for part in (weight.numbers, weight.scales, weight.minima) if part is not None
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", [LAYOUTS[0], SHARED[0], SPLIT[-1]], ids=str)
def test_a_weight_as_it_is_stored_is_multiplied_with_its_values(layout: Layout, dtype: torch.dtype) -> None:
    weight, x, bias = random_weight(layout, 41, 384), torch.randn(5, 384).to(dtype), torch.randn(41).to(dtype)
    whole = weight.widened().to(dtype).double()
    expected, sizes = x.double() @ whole.T + bias, x.double().abs() @ whole.abs().T + bias.abs()
    product = grouped_linear(x, weight, bias, dtype=torch.float32)
    assert bool(((product - expected).abs() <= 1e-6 * sizes).all())
    assert torch.equal(grouped_linear(x, weight, bias, dtype=dtype), product.to(dtype))
    assert grouped_linear(x[:0], weight, None, dtype=dtype).shape == (0, 41)
    for wrong in (x[:, 1:], x[0], x.T.contiguous().T):
        with pytest.raises(KernelInputError, match=r"\[tokens, 384\]"):
            grouped_linear(wrong, weight, None, dtype=dtype)
    with pytest.raises(KernelInputError, match=r"give \[out\]"):
        grouped_linear(x, weight, bias[1:], dtype=dtype)


@each_layout
def test_rows_of_a_packed_weight_have_the_widened_weights_bits(layout: Layout) -> None:
    weight, ids = random_weight(layout, 101, 96), torch.tensor([100, 0, 47, 48, 48])
    linear = GroupedLinear(weight, None, dtype=torch.bfloat16)
    assert torch.equal(linear.rows(ids), weight.widened().bfloat16()[ids])
    assert linear.rows(ids[:0]).shape == (0, 96)
    for wrong in (-1, 101):
        with pytest.raises(KernelInputError, match=r"\[0, 101\)"):
            linear.rows(torch.tensor([0, wrong]))


def rounded(x: Tensor) -> Tensor:
    """Return x as whole numbers times the scales of groups of 32, in fp64."""
    groups = x.float().view(x.shape[0], -1, 32)
    largest = groups.abs().amax(-1, keepdim=True)
    inverse = torch.full_like(largest, 127.0) / torch.where(largest == 0, 1.0, largest)
    numbers = torch.round(groups * inverse).clamp(-127, 127)
    return (numbers.double() * (largest / 127).double()).flatten(1)


def check_sums(actual: Tensor, x: Tensor, weight: GroupedWeight, bias: Tensor) -> None:
    """Check products of rounded activations: each sum may err by a few roundings of the sizes of its parts."""
    whole, parts = weight.widened().double(), weight.minima if weight.minima is not None else torch.zeros(1)
    expected = rounded(x) @ whole.T + bias
    sizes = rounded(x).abs() @ (whole.abs() + 2 * parts.double().abs().amax()).T + bias.abs()
    assert bool(((actual - expected).abs() <= 1e-6 * sizes).all())


@each_layout
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_whole_numbers_give_the_product_of_rounded_activations(layout: Layout, dtype: torch.dtype) -> None:
    for width, depth in ((101, 96), (48, 32), (7, 1056)):
        weight, bias = random_weight(layout, width, depth), torch.randn(width)
        linear = GroupedLinear(weight, bias, dtype=dtype, product=Product.INT8)
        x = torch.randn(11, depth).to(dtype)
        x[3] = 0
        check_sums(linear.unrounded(x), x, weight, bias)
        assert torch.equal(linear(x), linear.unrounded(x).to(dtype))
        assert torch.equal(linear(x[:0]), x.new_empty(0, width))


@pytest.mark.parametrize("layout", SHARED, ids=str)
def test_whole_numbers_take_a_scale_of_several_groups(layout: Layout) -> None:
    weight, x = random_weight(layout, 101, 384), torch.randn(11, 384)
    linear = GroupedLinear(weight, None, dtype=torch.float32, product=Product.INT8)
    check_sums(linear(x), x, weight, torch.zeros(101))


@pytest.mark.parametrize("layout", SPLIT, ids=str)
def test_whole_numbers_with_two_scales_a_group_are_refused(layout: Layout) -> None:
    with pytest.raises(KernelInputError, match="one scale for a group; this weight has one for 16"):
        GroupedLinear(random_weight(layout, 5, 64), None, dtype=torch.bfloat16, product=Product.INT8)


@pytest.mark.parametrize("num_threads", [1, 2, 7])
@pytest.mark.parametrize("product", [Product.INT8, PRODUCT_OF[UNITS[0][0]]] if UNITS else [])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(product: Product, num_threads: int) -> None:
    linear = GroupedLinear(random_weight(LAYOUTS[0], 148, 320), None, dtype=torch.bfloat16, product=product)
    x, before = torch.randn(131, 320).bfloat16(), torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        together = linear(x)
        for rows in range(1, 65, 3):
            assert torch.equal(linear(x[-rows:]), together[-rows:])
    finally:
        torch.set_num_threads(before)


def test_a_nan_or_infinity_stays_in_its_row() -> None:
    linear = GroupedLinear(random_weight(LAYOUTS[0], 50, 64), None, dtype=torch.float32, product=Product.INT8)
    x = torch.randn(9, 64)
    x[3, -1], x[5, 0] = torch.nan, torch.inf
    actual = linear(x).isfinite().all(dim=1)
    assert actual.tolist() == [True, True, True, False, True, False, True, True, True]


def test_joined_weights_are_multiplied_side_by_side() -> None:
    weights = [random_weight(LAYOUTS[0], width, 64) for width in (5, 50, 9)]
    assert torch.equal(join(weights).widened(), torch.cat([weight.widened() for weight in weights]))
    assert join(weights[:1]) is weights[0]


@each_layout
def test_a_weight_of_ones_has_its_layout(layout: Layout) -> None:
    weight = filled(layout, (50, 64))
    assert weight.layout == layout
    assert weight.shape == (50, 64)


def test_a_weight_or_activations_that_do_not_fit_are_refused() -> None:
    weight = random_weight(Layout(bits=8, scale_bytes=2, has_minima=True), 8, 64)
    for change in (
        {"numbers": weight.numbers.to(torch.int8)},
        {"numbers": weight.numbers[:, :, :20]},
        {"numbers": weight.numbers[:, :0]},
        {"scales": weight.scales[:, :1]},
        {"scales": weight.scales[:1], "minima": None},
        {"scales": weight.scales[:, :0], "minima": None},
        {"scales": weight.scales.repeat(1, 4), "minima": None},
        {"scales": weight.scales.flatten(), "minima": None},
        {"scales": weight.scales.float()},
        {"scales": weight.scales.double(), "minima": None},
    ):
        with pytest.raises(KernelInputError, match="give"):
            replace(weight, **change)
    with pytest.raises(KernelInputError, match=r"scales \(8, 2\); give one for 16, 32, 64"):
        replace(weight, numbers=weight.numbers.repeat(1, 3, 1), minima=None)  # 96 numbers a scale
    with pytest.raises(KernelInputError, match=r"give \[out\]"):
        GroupedLinear(weight, torch.zeros(7), dtype=torch.float32)
    with pytest.raises(KernelInputError, match="int8"):
        GroupedLinear(weight, None, dtype=torch.float32, product=Product.ONEDNN)
    linear = GroupedLinear(weight, None, dtype=torch.float32)
    for x in (torch.zeros(2, 32), torch.zeros(2, 64).bfloat16()):
        with pytest.raises(KernelInputError, match=r"\[tokens, 64\]"):
            linear(x)


SCRIPT = """
import hashlib
import torch
from kernels.cpu.grouped.byte_dots import has_byte_products, has_vnni
from kernels.grouped_linear import GroupedLinear
from kernels.packed_linear import Product, can_multiply
from tests.kernels.cpu.grouped_weights import LAYOUTS, random_weight

assert can_multiply(Product.INT8, torch.float32)
print(has_vnni(), has_byte_products())
for layout in LAYOUTS:
    torch.manual_seed(0)
    linear = GroupedLinear(random_weight(layout, 101, 320), None, dtype=torch.float32, product=Product.INT8)
    x = torch.randn(13, 320)
    for product in (linear(x), linear.rows(torch.arange(101))):
        print(hashlib.sha256(product.numpy().tobytes()).hexdigest())
"""

NARROW = "+avx,+avx2,+fma,+f16c,+sse4.2,+bmi,+bmi2"


@pytest.fixture(scope="module")
def unrestricted() -> list[str]:
    return lines({})


@pytest.mark.parametrize(
    ("name", "features", "units"),
    [
        ("haswell", NARROW.replace("+f16c,", ""), ["False", "True"]),
        ("skylake-avx512", f"{NARROW},+avx512f,+avx512dq,+avx512bw,+avx512vl", ["False", "True"]),
        ("knl", f"{NARROW},+avx512f", ["False", "False"]),
    ],
)
def test_whole_numbers_have_the_same_bits_on_cpus_without_vnni(
    name: str, features: str, units: list[str], unrestricted: list[str]
) -> None:
    if "avx512f" in features and not gemm.can_multiply(Unit.DOTS, torch.bfloat16):
        pytest.skip("this CPU has no AVX-512")
    restricted = lines({"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features})
    assert restricted[:2] == units
    assert restricted[2:] == unrestricted[2:]


def lines(environment: dict[str, str]) -> list[str]:
    command, environment = [sys.executable, "-c", SCRIPT], os.environ | environment | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout.split()


def test_a_weight_keeps_its_numbers_by_any_order_of_rows() -> None:
    weight, order = random_weight(LAYOUTS[0], 12, 64), torch.randperm(12)
    assert torch.equal(weight.rows(lambda part: part[order]).widened(), weight.widened()[order])
    assert isinstance(weight.rows(lambda part: part[:1]), GroupedWeight)
