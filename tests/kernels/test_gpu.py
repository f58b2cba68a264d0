"""Tests of every kernel on a CUDA device against its twin, through the public ops, at the shapes of real models."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from kernels.draw_tokens import draw_tokens, draw_tokens_reference
from kernels.grouped_linear import GroupedLinear, grouped_linear, grouped_linear_reference
from kernels.grouped_weight import Layout
from kernels.packed_linear import PackedLinear, Product
from kernels.paged_attention import paged_attention, paged_attention_reference
from kernels.rms_norm import add_rms_norm, add_rms_norm_reference, rms_norm, rms_norm_reference
from kernels.rope import rope, rope_reference
from kernels.rope_and_write_kv import rope_and_write_kv, rope_and_write_kv_reference
from kernels.silu_mul import silu_mul, silu_mul_reference
from kernels.token_mask import apply_token_mask, apply_token_mask_reference
from kernels.write_kv import write_kv, write_kv_reference
from tests.kernels.cpu.grouped_weights import LAYOUTS, SHARED, SPLIT, random_weight

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
TOLERANCE = {torch.bfloat16: 1.6e-2, torch.float16: 2e-3, torch.float32: 2e-5}


def close(actual: torch.Tensor, expected: torch.Tensor, *, least: float = 0.0) -> None:
    """Compare with two rounding steps of the dtype, or `least` if that is more."""
    step = max(TOLERANCE[actual.dtype], least)
    torch.testing.assert_close(actual, expected, rtol=step, atol=step, equal_nan=True)


def randn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Draw on the GPU in fp32, then round."""
    return torch.randn(*shape, device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 576), (257, 4096), (33, 8192), (64, 32, 128)])
def test_rms_norm_equals_its_twin(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = randn(*shape, dtype=dtype), randn(shape[-1], dtype=dtype)
    close(rms_norm(x, weight, eps=1e-6), rms_norm_reference(x, weight, eps=1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_equals_its_twin(dtype: torch.dtype) -> None:
    x, residual, weight = (randn(*shape, dtype=dtype) for shape in ((257, 4096), (257, 4096), (4096,)))
    for actual, expected in zip(
        add_rms_norm(x, residual, weight, eps=1e-6), add_rms_norm_reference(x, residual, weight, eps=1e-6), strict=True
    ):
        close(actual, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_mul_equals_its_twin(dtype: torch.dtype) -> None:
    gate_up = randn(300, 2 * 14336, dtype=dtype) * 4
    close(silu_mul(gate_up), silu_mul_reference(gate_up))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_token_mask_equals_its_twin(dtype: torch.dtype) -> None:
    logits = randn(130, 151_936, dtype=dtype)
    mask = torch.randint(-(2**31), 2**31 - 1, (100, 4748), dtype=torch.int32, device="cuda")
    expected, rows = logits.clone(), torch.randperm(130, device="cuda")[:100]
    apply_token_mask(logits, mask, rows)
    apply_token_mask_reference(expected, mask, rows)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (0, 0.9), (50, 1.0), (50, 0.8), (0, 0.0)])
def test_drawn_tokens_are_kept_ones_and_nearly_always_those_of_the_twin(top_k: int, top_p: float) -> None:
    probabilities = (randn(200, 128_256, dtype=torch.float32) * 3).softmax(dim=-1)
    draws = torch.rand(200, device="cuda")
    rows = {"top_k": torch.full((200,), top_k, device="cuda"), "top_p": torch.full((200,), top_p, device="cuda")}
    tokens = draw_tokens(probabilities, draws, **rows)
    twins = draw_tokens_reference(probabilities, draws, **rows)
    # A draw at the border of two tokens may go either way: sums of 128,256 numbers round by the order of addition.
    assert (tokens - twins).abs().le(1).float().mean() > 0.9
    assert torch.equal(tokens, draw_tokens(probabilities, draws, **rows))
    drawn = probabilities.gather(-1, tokens[:, None])
    above = probabilities.masked_fill(probabilities <= drawn, 0.0)
    if top_k:
        assert (above > 0.0).sum(dim=-1).max() < top_k
    elif top_p < 1.0:
        assert (above.sum(dim=-1) <= max(top_p, 1e-30) + 1e-5).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rot_dim", [128, 32])
def test_rope_and_the_cache_write_equal_their_twins(layer_case: Any, rot_dim: int, dtype: torch.dtype) -> None:
    slots = [-1 if index % 7 == 3 else index * 5 % 4096 for index in range(500)]
    sizes = {"heads": 32, "kv_heads": 8, "head_dim": 128, "rot_dim": rot_dim, "block_size": 16, "num_blocks": 256}
    start = layer_case(slots, dtype=dtype, device="cuda", **sizes)
    apart, fused, expected, expected_fused = (start.clone() for _ in range(4))
    for one, turn, write in ((apart, rope, write_kv), (expected, rope_reference, write_kv_reference)):
        turn(one.query, one.key, one.step.positions, one.cos_sin)
        write(one.key, one.value, one.cache, one.step.slots)
    for one, both in ((fused, rope_and_write_kv), (expected_fused, rope_and_write_kv_reference)):
        both(one.query, one.key, one.value, one.cos_sin, one.cache, one.step)
    for ours, twin in ((apart, expected), (fused, expected_fused)):
        for one, other in zip(ours.written, twin.written, strict=True):
            close(one, other)


BATCHES = {
    "decodes": [(1, 1 + 37 * index % 900) for index in range(64)],
    "one-long-decode": [(1, 5000)],
    "prefills": [(1, 1), (700, 700), (129, 129), (16, 16)],
    "mixed": [(1, 900), (512, 1500), (1, 3), (17, 40), (1, 0), (300, 300), (2, 2000)],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 256])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (9, 3, 64), (8, 8, 80), (16, 8, 256)])
@pytest.mark.parametrize("batch", BATCHES)
def test_attention_equals_its_twin(
    attention_case: Any, batch: str, heads: int, kv_heads: int, head_dim: int, window: int | None, dtype: torch.dtype
) -> None:
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "block_size": 16}
    case = attention_case(BATCHES[batch], window=window, dtype=dtype, device="cuda", **sizes)
    actual = case.run(paged_attention)
    assert torch.isfinite(actual).all()
    close(actual, case.run(paged_attention_reference))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 256])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(16, 8, 256), (64, 8, 64)])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("soft_cap", "has_sinks"), [(5.0, False), (None, True), (50.0, True)])
def test_attention_with_a_cap_or_sinks_equals_its_twin(
    attention_case: Any,
    soft_cap: float | None,
    has_sinks: bool,
    batch: str,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int | None,
    dtype: torch.dtype,
) -> None:
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "block_size": 16}
    case = attention_case(BATCHES[batch], window=window, dtype=dtype, device="cuda", **sizes)
    sinks = randn(heads, dtype=dtype) * 3 if has_sinks else None
    logits: dict[str, Any] = {"soft_cap": soft_cap, "sinks": sinks}
    actual = case.run(paged_attention, **logits)
    assert torch.isfinite(actual).all()
    # The device's exp2 and division, each 2 units in the last place off, make 4e-5 of a cap of 50.
    close(actual, case.run(paged_attention_reference, **logits), least=1e-4 if soft_cap == 50.0 else 0.0)


def test_random_batches_equal_their_twin(attention_case: Any) -> None:
    chooser = random.Random(3)
    for seed in range(20):
        lengths = [(1, 1)]
        for _ in range(chooser.randint(1, 40)):
            query_len = chooser.choice([0, 1, 1, 1, chooser.randint(1, 300)])
            lengths.append((query_len, query_len + chooser.randint(0, 900)))
        case = attention_case(
            lengths, heads=32, kv_heads=8, head_dim=128, block_size=16, dtype=torch.bfloat16, device="cuda", seed=seed
        )
        expected = case.run(paged_attention_reference)
        close(case.run(paged_attention), expected)
        num_decodes = next((index for index, (count, _) in enumerate(lengths) if count != 1), len(lengths))
        close(case.run(paged_attention, num_decodes=num_decodes), expected)


def test_a_captured_decode_serves_other_lengths_and_tables(attention_case: Any) -> None:
    sizes = {"heads": 32, "kv_heads": 8, "head_dim": 128, "block_size": 16, "dtype": torch.bfloat16, "device": "cuda"}
    captured = attention_case([(1, 2000)] * 4, **sizes)
    captured.run(paged_attention)  # compiles; a capture must not
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = captured.run(paged_attention)
    other = attention_case([(1, 7), (1, 1999), (1, 0), (1, 640)], seed=1, **sizes)
    captured.query.copy_(other.query)
    for ours, theirs in zip(captured.cache, other.cache, strict=True):
        ours[: theirs.shape[0]] = theirs
    tables = other.step.block_tables
    captured.step.block_tables[:, : tables.shape[1]] = tables
    captured.step.context_lens.copy_(other.step.context_lens)
    graph.replay()
    close(out, other.run(paged_attention_reference))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [*LAYOUTS, *SHARED, *SPLIT], ids=str)
@pytest.mark.parametrize("rows", [1, 40, 300])
def test_a_packed_weight_is_multiplied_as_it_is(layout: Layout, rows: int, dtype: torch.dtype) -> None:
    weight = random_weight(layout, 1000, 384).to(torch.device("cuda"))
    x, bias = randn(rows, 384, dtype=dtype), randn(1000, dtype=dtype)
    expected = grouped_linear_reference(x, weight, bias, dtype=torch.float32)
    close(grouped_linear(x, weight, bias, dtype=torch.float32), expected, least=1e-3)
    layer, ids = GroupedLinear(weight, bias, dtype=dtype), torch.tensor([999, 0, 48], device="cuda")
    close(layer(x), expected.to(dtype), least=1e-3)
    assert torch.equal(layer.rows(ids), weight.widened()[ids].to(dtype))


def test_a_linear_on_a_gpu_is_not_packed() -> None:
    x, weight = randn(3, 64, dtype=torch.bfloat16), randn(32, 64, dtype=torch.bfloat16)
    layer = PackedLinear(weight, None)
    assert layer.product is Product.PLAIN
    assert torch.equal(layer(x), torch.nn.functional.linear(x, weight))
