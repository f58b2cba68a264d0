"""Tests of each format of whole numbers: its values, widened and packed, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.errors import ModelLoadError
from engine.quantized.quantization import Integers, Packing, Quantization, QuantMethod
from engine.quantized.weights import QuantizedWeights, quantized_weights
from kernels.grouped_weight import Layout
from tests.engine.quantized.formats import NAME, Quantized, Stored, as_awq, as_bytes, as_gptq, as_packed, some_weight

WIDTH, DEPTH = 40, 384


def integers(packing: Packing, **changes: Any) -> Integers:
    return replace(Integers(packing=packing, bits=4, group=128, is_symmetric=True), **changes)


def weights(stored: Integers, tensors: dict[str, Tensor]) -> QuantizedWeights:
    named = Stored({f"{NAME}.{part}": tensor for part, tensor in tensors.items()})
    return quantized_weights(Quantization(method=QuantMethod.GPTQ, stored=stored), named)


def written(weight: Quantized, stored: Integers) -> dict[str, Tensor]:
    if stored.packing in (Packing.GPTQ, Packing.GPTQ_V2):
        return as_gptq(weight, is_first_version=stored.packing is Packing.GPTQ)
    if stored.packing is Packing.AWQ:
        return as_awq(weight)
    write = as_packed if stored.packing is Packing.PACKED else as_bytes
    return write(weight, is_symmetric=stored.is_symmetric)


def check(weight: Quantized, stored: Integers, layout: Layout | None) -> None:
    """Check that a weight is read whole with its values, and packed with them if it has a layout."""
    read = weights(stored, written(weight, stored))
    assert f"{NAME}.weight" in read
    assert torch.equal(read.read(f"{NAME}.weight"), weight.values)
    assert read.layout(f"{NAME}.weight") == layout
    if layout is not None:
        packed = read.read_grouped(f"{NAME}.weight")
        assert packed.layout == layout
        assert torch.equal(packed.widened(), weight.values)


each_sharing = pytest.mark.parametrize("group", [32, 64, 128, None])
each_size = pytest.mark.parametrize("bits", [4, 8])


@each_sharing
@each_size
@pytest.mark.parametrize("packing", [Packing.GPTQ, Packing.GPTQ_V2, Packing.PACKED, Packing.BYTES])
def test_a_symmetric_weight_takes_no_minima(packing: Packing, bits: int, group: int | None) -> None:
    weight = some_weight((WIDTH, DEPTH), bits=bits, group=group, is_symmetric=True)
    layout = Layout(bits=bits, scale_bytes=2, has_minima=False, scaled=group or DEPTH)
    check(weight, integers(packing, bits=bits, group=group), layout)


@each_sharing
@each_size
@pytest.mark.parametrize("packing", Packing)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_weight_with_zeros_has_every_value_of_its_numbers(
    packing: Packing, bits: int, group: int | None, dtype: torch.dtype
) -> None:
    if packing is Packing.AWQ and bits == 8:
        pytest.skip("AWQ has 4 bits")
    weight = some_weight((WIDTH, DEPTH), bits=bits, group=group, is_symmetric=False, dtype=dtype)
    layout = Layout(bits=bits, scale_bytes=4, has_minima=True, scaled=group or DEPTH)
    check(weight, integers(packing, bits=bits, group=group, is_symmetric=False), layout)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_scales_of_other_dtypes_are_kept_in_fp32(dtype: torch.dtype) -> None:
    weight = some_weight((WIDTH, DEPTH), bits=8, group=None, is_symmetric=True, dtype=dtype)
    layout = Layout(bits=8, scale_bytes=4, has_minima=False, scaled=DEPTH)
    check(weight, integers(Packing.BYTES, bits=8, group=None), layout)


@pytest.mark.parametrize("is_symmetric", [True, False])
def test_one_scale_of_a_whole_weight_is_that_of_each_row(is_symmetric: bool) -> None:
    weight = some_weight((1, DEPTH), bits=8, group=None, is_symmetric=is_symmetric)
    numbers = torch.randint(0, 256, (WIDTH, DEPTH), generator=torch.Generator().manual_seed(1))
    stored = integers(Packing.BYTES, bits=8, group=None, is_symmetric=is_symmetric, is_single=True)
    tensors = written(replace(weight, numbers=numbers), stored)
    tensors |= {part: tensor.flatten() for part, tensor in tensors.items() if part != "weight"}
    expected = replace(
        weight, numbers=numbers, scales=weight.scales.expand(WIDTH, 1), zeros=weight.zeros.expand(WIDTH, 1)
    )
    read = weights(stored, tensors)
    assert torch.equal(read.read(f"{NAME}.weight"), expected.values)
    assert torch.equal(read.read_grouped(f"{NAME}.weight").widened(), expected.values)


@pytest.mark.parametrize(
    ("shape", "group", "dtype"),
    [
        ((WIDTH, 192), 96, torch.float16),  # numbers that share a scale in no layout
        ((WIDTH, 320), 128, torch.float16),  # a last group that is not whole
        ((WIDTH, 512), 300, torch.float16),  # as many scales as groups of 256 would have
        ((WIDTH, 48), None, torch.float16),  # half a group of 32
        ((WIDTH, DEPTH), 128, torch.float32),  # scales whose products are not exact
    ],
)
def test_a_weight_that_no_layout_holds_is_read_whole(
    shape: tuple[int, int], group: int | None, dtype: torch.dtype
) -> None:
    weight = some_weight(shape, bits=4, group=group, is_symmetric=False, dtype=dtype)
    stored = integers(Packing.PACKED, group=group, is_symmetric=False)
    check(weight, stored, None)


def test_numbers_with_scales_out_of_order_are_read_whole() -> None:
    weight = some_weight((WIDTH, DEPTH), bits=4, group=128, is_symmetric=False)
    order = torch.randperm(DEPTH, generator=torch.Generator().manual_seed(2))
    check(
        replace(weight, places=weight.places[order]), integers(Packing.GPTQ, is_symmetric=False, has_places=True), None
    )
    packed = replace(weight, places=weight.places[order])
    tensors = as_packed(packed, is_symmetric=False) | {"weight_g_idx": packed.places.to(torch.int32)}
    read = weights(integers(Packing.PACKED, is_symmetric=False, has_places=True), tensors)
    assert torch.equal(read.read(f"{NAME}.weight"), packed.values)
    assert read.layout(f"{NAME}.weight") is None


def test_zeros_decide_whether_a_weight_is_symmetric() -> None:
    weight = some_weight((WIDTH, DEPTH), bits=4, group=128, is_symmetric=False)
    check(weight, integers(Packing.GPTQ), Layout(bits=4, scale_bytes=4, has_minima=True, scaled=128))


def test_zeros_of_0_in_gptqs_first_version_carry_as_its_tools_let_them() -> None:
    weight = some_weight((WIDTH, DEPTH), bits=4, group=128, is_symmetric=False)
    weight.zeros[3:20] = 0
    tensors = as_gptq(weight, is_first_version=False)
    tensors["qzeros"] = tensors["qzeros"] - 0x11111111
    read = weights(integers(Packing.GPTQ, is_symmetric=False), tensors)
    assert torch.equal(read.read(f"{NAME}.weight"), weight.values)


def test_zeros_of_older_compressed_tensors_are_in_int8() -> None:
    weight = some_weight((WIDTH, DEPTH), bits=4, group=128, is_symmetric=False)
    tensors = as_packed(weight, is_symmetric=False) | {"weight_zero_point": (weight.zeros - 8).to(torch.int8)}
    read = weights(integers(Packing.PACKED, is_symmetric=False), tensors)
    assert torch.equal(read.read(f"{NAME}.weight"), weight.values)


def test_widths_need_not_be_whole_words_of_zeros() -> None:
    weight = some_weight((37, DEPTH), bits=4, group=128, is_symmetric=False)
    check(
        weight, integers(Packing.PACKED, is_symmetric=False), Layout(bits=4, scale_bytes=4, has_minima=True, scaled=128)
    )


def test_names_are_those_of_the_unquantized_model() -> None:
    stored = integers(Packing.GPTQ)
    tensors = Stored({f"{NAME}.{part}": torch.zeros(1) for part in ("qweight", "qzeros", "scales", "g_idx", "bias")})
    tensors |= {"model.norm.weight": torch.zeros(1), "model.layers.0.self_attn.k_scale": torch.zeros(1)}
    read = quantized_weights(Quantization(method=QuantMethod.GPTQ, stored=stored), tensors)
    names = [read.whole_name(name) for name in tensors]
    assert [name for name in names if name is not None] == [f"{NAME}.weight", f"{NAME}.bias", "model.norm.weight"]
    assert "model.norm.weight" not in read


@pytest.mark.parametrize(
    ("packing", "part", "change", "message"),
    [
        (Packing.GPTQ, "scales", None, "no tensor {name}.scales"),
        (Packing.GPTQ, "qzeros", None, "no tensor {name}.qzeros"),
        (Packing.GPTQ, "g_idx", None, "no tensor {name}.g_idx"),
        (
            Packing.GPTQ,
            "scales",
            lambda t: t[:2],
            r"{name}.scales is float16 \[2, 40\]; gptq of 4 bits with a scale for 128",
        ),
        (Packing.GPTQ, "qzeros", lambda t: t[:, :4], r"qzeros is int32 \[3, 4\]; .* has int32 \[3, 5\]"),
        (Packing.GPTQ, "qweight", lambda t: t.float(), r"qweight is float32 \[48, 40\]; .* has int32 \[any, any\]"),
        (Packing.GPTQ, "qweight", lambda t: t[:0], r"qweight is int32 \[0, 40\]"),
        (Packing.GPTQ, "g_idx", lambda t: t + 1, "g_idx has indices outside 0 to 2"),
        (Packing.GPTQ, "g_idx", lambda t: t[1:], r"g_idx is int32 \[383\]; .* \[384\]"),
        (Packing.AWQ, "scales", None, "no tensor {name}.scales"),
        (Packing.AWQ, "qzeros", lambda t: t.T, r"qzeros is int32 \[5, 3\]; gemm of 4 bits .* has int32 \[3, 5\]"),
        (Packing.PACKED, "weight_shape", None, "no tensor {name}.weight_shape"),
        (Packing.PACKED, "weight_scale", None, "no tensor {name}.weight_scale"),
        (Packing.PACKED, "weight_zero_point", None, "no tensor {name}.weight_zero_point"),
        (Packing.PACKED, "weight_shape", lambda t: t * 2, r"weight_packed is int32 \[40, 48\]; .* int32 \[80, 96\]"),
        (Packing.PACKED, "weight_zero_point", lambda t: t[:4], r"weight_zero_point is int32 \[4, 3\]; .* \[5, 3\]"),
        (Packing.BYTES, "weight", lambda t: t.float(), r"weight is float32 \[40, 384\]; int-quantized .* has int8"),
        (Packing.BYTES, "weight", lambda t: t + 8, "weight has numbers of more than 4 bits"),
        (
            Packing.BYTES,
            "weight_scale",
            lambda t: t.to(torch.uint8),
            r"weight_scale is uint8 \[40, 3\]; .* float32 \[40, 3\]",
        ),
    ],
)
def test_parts_that_are_missing_or_do_not_fit_are_named(
    packing: Packing, part: str, change: Callable[[Tensor], Tensor] | None, message: str
) -> None:
    stored = integers(packing, is_symmetric=False, has_places=packing is Packing.GPTQ)
    tensors = written(some_weight((WIDTH, DEPTH), bits=4, group=128, is_symmetric=False), stored)
    if change is None:
        del tensors[part]
    else:
        tensors[part] = change(tensors[part])
    with pytest.raises(ModelLoadError, match=message.replace("{name}", NAME)):
        weights(stored, tensors).read(f"{NAME}.weight")
