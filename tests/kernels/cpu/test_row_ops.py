"""Tests of the compiled CPU path through the public ops, against the twins: fp32 and bf16, odd shapes first."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.errors import KernelInputError
from kernels.rms_norm import add_rms_norm, add_rms_norm_reference, rms_norm, rms_norm_reference
from kernels.rope import rope, rope_reference
from kernels.rope_and_write_kv import rope_and_write_kv, rope_and_write_kv_reference
from kernels.silu_mul import silu_mul, silu_mul_reference
from kernels.write_kv import write_kv, write_kv_reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CACHE_PAIRS = [(a, b) for a in DTYPES[:2] for b in DTYPES[:2]] + [(torch.float16, torch.float16)]


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare with the error of one rounding step of the dtype."""
    step = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}[actual.dtype]
    torch.testing.assert_close(actual, expected, rtol=step, atol=step, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (3, 7), (130, 576), (2, 3, 10), (65, 9, 64)])
def test_rms_norm_equals_its_twin(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[-1]).to(dtype)
    close(rms_norm(x, weight, eps=1e-5), rms_norm_reference(x, weight, eps=1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_takes_heads_out_of_a_merged_row(dtype: torch.dtype) -> None:
    heads, weight = torch.randn(5, 7, 16).to(dtype)[:, 2:5], torch.randn(16).to(dtype)
    close(rms_norm(heads, weight, eps=1e-6), rms_norm_reference(heads, weight, eps=1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (5, 9), (130, 576)])
def test_add_rms_norm_equals_its_twin_and_leaves_its_inputs(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, residual, weight = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype), torch.randn(shape[1]).to(dtype)
    before = x.clone(), residual.clone()
    normed, total = add_rms_norm(x, residual, weight, eps=1e-5)
    expected_normed, expected_total = add_rms_norm_reference(x, residual, weight, eps=1e-5)
    close(normed, expected_normed)
    assert torch.equal(total, expected_total)
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 8), (1, 2), (3, 14), (70, 3072)])
def test_silu_mul_equals_its_twin(shape: tuple[int, int], dtype: torch.dtype) -> None:
    gate_up = (torch.randn(shape) * 8).to(dtype)
    close(silu_mul(gate_up), silu_mul_reference(gate_up))


def test_silu_mul_of_huge_gates_saturates_and_keeps_nan() -> None:
    gate = torch.tensor([[-1e4, 1e4, torch.nan, -90.0, 0.0]])
    actual = silu_mul(torch.cat((gate, torch.ones_like(gate)), -1))
    torch.testing.assert_close(
        actual, torch.tensor([[0.0, 1e4, torch.nan, 0.0, 0.0]]), equal_nan=True, atol=1e-30, rtol=0
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "head_dim", "rot_dim"), [(0, 8, 8), (5, 10, 6), (70, 64, 64), (2, 4, 0)])
def test_rope_equals_its_twin(layer_case: Any, tokens: int, head_dim: int, rot_dim: int, dtype: torch.dtype) -> None:
    case = layer_case([-1] * tokens, heads=9, kv_heads=3, head_dim=head_dim, rot_dim=rot_dim, dtype=dtype)
    expected = case.clone()
    rope(case.query, case.key, case.step.positions, case.cos_sin)
    rope_reference(expected.query, expected.key, expected.step.positions, expected.cos_sin)
    close(case.query, expected.query)
    close(case.key, expected.key)


@pytest.mark.parametrize(("dtype", "cache_dtype"), CACHE_PAIRS)
def test_write_kv_fills_its_slots_and_nothing_else(
    layer_case: Any, dtype: torch.dtype, cache_dtype: torch.dtype
) -> None:
    case = layer_case([7, -1, 0, 11, -1], kv_heads=2, dtype=dtype, cache_dtype=cache_dtype)
    expected = case.clone()
    write_kv(case.key, case.value, case.cache, case.step.slots)
    write_kv_reference(expected.key, expected.value, expected.cache, expected.step.slots)
    for actual, wanted in zip(case.written, expected.written, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("dtype", "cache_dtype"), CACHE_PAIRS)
@pytest.mark.parametrize("rot_dim", [4, 10])
def test_rope_and_write_kv_equals_the_two_ops(
    layer_case: Any, rot_dim: int, dtype: torch.dtype, cache_dtype: torch.dtype
) -> None:
    case = layer_case([5, -1, 1, 9], kv_heads=2, heads=4, rot_dim=rot_dim, dtype=dtype, cache_dtype=cache_dtype)
    expected, apart = case.clone(), case.clone()
    for one, run in ((case, rope_and_write_kv), (expected, rope_and_write_kv_reference)):
        run(one.query, one.key, one.value, one.cos_sin, one.cache, one.step)
    rope(apart.query, apart.key, apart.step.positions, apart.cos_sin)
    write_kv(apart.key, apart.value, apart.cache, apart.step.slots)
    for ours, twin, in_two in zip(case.written, expected.written, apart.written, strict=True):
        close(ours, twin)
        torch.testing.assert_close(ours, in_two, rtol=0, atol=0, equal_nan=True)


def test_a_nan_and_an_infinity_keep_their_kind_when_rounded_to_bf16(layer_case: Any) -> None:
    case = layer_case([0, 1, 2], cache_dtype=torch.bfloat16)
    case.key[0], case.key[1], case.key[2] = torch.nan, torch.inf, -3.4e38
    write_kv(case.key, case.value, case.cache, case.step.slots)
    assert case.cache.keys[0, 0, 0].isnan().all()
    assert case.cache.keys[0, 0, 1].isposinf().all()
    assert torch.equal(case.cache.keys[0, 0, 2], case.key[2, 0].bfloat16())


def test_a_slot_or_position_out_of_range_is_an_error_on_the_cpu(layer_case: Any) -> None:
    case = layer_case([0, 12])
    with pytest.raises(KernelInputError, match=r"slots in \[-1, 12\)"):
        write_kv(case.key, case.value, case.cache, case.step.slots)
    case.step.positions[1] = 17
    with pytest.raises(KernelInputError, match=r"positions must lie in \[0, 17\)"):
        rope(case.query, case.key, case.step.positions, case.cos_sin)


def test_wrong_shapes_strides_and_dtypes_are_named(layer_case: Any) -> None:
    x, weight, case = torch.randn(3, 8), torch.randn(8), layer_case([0, 1])
    with pytest.raises(KernelInputError, match=r"weight has shape \(7,\); x needs \[8\]"):
        rms_norm(x, weight[:7], eps=1e-5)
    with pytest.raises(KernelInputError, match="convert the weight"):
        rms_norm(x, weight.bfloat16(), eps=1e-5)
    with pytest.raises(KernelInputError, match="last axis must be contiguous"):
        rms_norm(torch.randn(8, 3).T, weight, eps=1e-5)
    with pytest.raises(KernelInputError, match=r"residual torch.float32 \(2, 8\)"):
        add_rms_norm(x, x[:2], weight, eps=1e-5)
    with pytest.raises(KernelInputError, match=r"\(3, 7\).*2 \* ffn"):
        silu_mul(torch.randn(3, 7))
    with pytest.raises(KernelInputError, match="int64"):
        rope(case.query, case.key, case.step.positions.int(), case.cos_sin)
    with pytest.raises(KernelInputError, match=r"slots torch\.int32"):
        write_kv(case.key, case.value, case.cache, case.step.slots.int())
