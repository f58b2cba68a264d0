"""Tests of the ops of encoders on the CPU: layer norms and activations against torch's own, and attention ahead."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn import functional

from kernels.activations import Activation, activate
from kernels.errors import KernelInputError
from kernels.layer_norm import add_layer_norm, layer_norm
from kernels.paged_attention import paged_attention, paged_attention_reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(0, 8), (1, 1), (3, 7), (5, 63), (130, 384)]


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    step = {torch.float32: 5e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}[actual.dtype]
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=step, atol=step, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_layer_norm_is_torchs_alone_and_after_a_sum(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, residual = ((torch.randn(shape) + 3).to(dtype) for _ in range(2))
    weight, bias = torch.randn(shape[1]), torch.randn(shape[1])
    close(layer_norm(x, weight, bias, eps=1e-5), functional.layer_norm(x.float(), shape[1:], weight, bias, 1e-5))
    normed, total = add_layer_norm(x, residual, weight, bias, eps=1e-5)
    assert torch.equal(total, x + residual)
    close(normed, functional.layer_norm(total.float(), shape[1:], weight, bias, 1e-5))


def test_a_layer_norm_takes_rows_out_of_wider_ones() -> None:
    wide, weight, bias = torch.randn(5, 40), torch.randn(16), torch.randn(16)
    x, residual = wide[:, 3:19], wide[:, 20:36]
    total = x + residual
    expected = functional.layer_norm(total, (16,), weight, bias, 1e-5)
    close(add_layer_norm(x, residual, weight, bias, eps=1e-5)[0], expected)


def test_a_mean_far_from_zero_costs_no_digits_of_the_variance() -> None:
    x = torch.randn(4, 384) + 1000.0
    ones, zeros = torch.ones(384), torch.zeros(384)
    expected = functional.layer_norm(x.double(), (384,), eps=1e-5)
    assert (layer_norm(x, ones, zeros, eps=1e-5) - expected).abs().max() < 1e-3


PLAIN = {
    Activation.GELU: functional.gelu,
    Activation.GELU_TANH: lambda x: functional.gelu(x, approximate="tanh"),
    Activation.RELU: functional.relu,
}


@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_activation_is_torchs_alone_and_times_a_gate(activation: Activation, dtype: torch.dtype) -> None:
    x = torch.cat((torch.linspace(-12, 12, 4096), torch.zeros(2), torch.tensor([1e4, -1e4]))).view(20, 205).to(dtype)
    close(activate(x, activation), PLAIN[activation](x.float()))
    gates = torch.randn(20, 205).to(dtype)
    gated = activate(torch.cat((x, gates), 1), activation, is_gated=True)
    close(gated, PLAIN[activation](x.float()) * gates.float())


def test_gelu_is_as_near_as_the_readme_says() -> None:
    x = torch.linspace(-12, 12, 240_000).view(100, -1)
    expected = x.double() * torch.special.ndtr(x.double())
    errors = (activate(x, Activation.GELU).double() - expected).abs()
    assert (errors - 2**-23 * expected.abs()).max() <= 2.4e-7  # beside the rounding of sums as large as the result


@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_a_broken_number_stays_broken(activation: Activation, dtype: torch.dtype) -> None:
    x = torch.tensor([[torch.nan, 1.0, torch.inf]]).to(dtype)
    found = activate(x, activation)
    assert found.isnan().tolist() == [[True, False, False]]
    assert found[0, 2] == torch.inf
    assert layer_norm(x, torch.ones(3), torch.zeros(3), eps=1e-5).isnan().all()


LENGTHS = [(1, 1), (5, 5), (16, 16), (97, 97), (130, 130), (300, 300), (20, 150)]


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("dim", [8, 32])
@pytest.mark.parametrize(("window", "ahead"), [(None, None), (None, 3), (4, 3), (65, 64), (129, 128), (200, None)])
@pytest.mark.parametrize("block_size", [16, 4])
def test_keys_ahead_are_seen_like_in_the_twin(
    attention_case: Any, dtype: torch.dtype, dim: int, window: int | None, ahead: int | None, block_size: int
) -> None:
    case = attention_case(LENGTHS, heads=4, kv_heads=4, head_dim=dim, dtype=dtype, window=window, block_size=block_size)
    expected = case.run(paged_attention_reference, ahead=ahead)
    found = case.run(paged_attention, ahead=ahead)
    assert not found.isnan().any()
    torch.testing.assert_close(found.float(), expected.float(), rtol=0, atol=2e-6 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_a_row_that_sees_ahead_does_not_depend_on_its_batch(attention_case: Any, dtype: torch.dtype) -> None:
    case = attention_case(LENGTHS, heads=4, kv_heads=4, head_dim=32, dtype=dtype, block_size=16)
    rule, cache = replace(case.rule, ahead=None), case.as_written()
    together = paged_attention(case.query, cache, case.step, rule)
    starts = case.step.query_start.tolist()
    for index, (first, end) in enumerate(pairwise(starts)):
        alone = replace(
            case.step,
            block_tables=case.step.block_tables[index : index + 1],
            query_start=torch.tensor([0, end - first], dtype=torch.int32),
            context_lens=case.step.context_lens[index : index + 1],
        )
        assert torch.equal(paged_attention(case.query[first:end], cache, alone, rule), together[first:end])


def test_what_an_op_does_not_take_is_named(attention_case: Any) -> None:
    x, weight, bias = torch.randn(3, 8), torch.ones(8), torch.zeros(8)
    with pytest.raises(KernelInputError, match=r"bias is torch.bfloat16 \(8,\)"):
        layer_norm(x, weight, bias.bfloat16(), eps=1e-5)
    with pytest.raises(KernelInputError, match=r"residual is torch.float32 \(2, 8\)"):
        add_layer_norm(x, x[:2], weight, bias, eps=1e-5)
    with pytest.raises(KernelInputError, match=r"x is \(3, 7\)"):
        activate(torch.randn(3, 7), Activation.GELU, is_gated=True)
    with pytest.raises(KernelInputError, match="ahead -1"):
        attention_case([(2, 2)]).run(paged_attention, ahead=-1)
