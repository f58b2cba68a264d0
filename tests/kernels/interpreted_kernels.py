"""The Triton kernels under the interpreter, against their twins; run by test_interpreter.py in its own process.

TRITON_INTERPRET must be set before triton is imported, and it changes triton for the whole process. fp32 and fp16 only:
the interpreter's bf16 arithmetic is wrong. Shapes are small and odd: a tile takes milliseconds here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from kernels.draw_tokens import draw_tokens_reference, draw_tokens_triton
from kernels.gpu import attention as attention_kernels
from kernels.gpu.attention import AttentionConfig, paged_attention_triton
from kernels.gpu.grouped_linear import grouped_linear_triton
from kernels.grouped_linear import grouped_linear_reference
from kernels.grouped_weight import GroupedWeight, Layout
from kernels.paged_attention import paged_attention_reference
from kernels.rms_norm import add_rms_norm_reference, add_rms_norm_triton, rms_norm_reference, rms_norm_triton
from kernels.rope import rope_reference, rope_triton
from kernels.rope_and_write_kv import rope_and_write_kv_reference, rope_and_write_kv_triton
from kernels.silu_mul import silu_mul_reference, silu_mul_triton
from kernels.token_mask import apply_token_mask_reference, apply_token_mask_triton
from kernels.write_kv import write_kv_reference, write_kv_triton
from tests.kernels.cpu.grouped_weights import LAYOUTS, SHARED, SPLIT, random_weight
from tests.kernels.patched_language import language_patched_once

# Triton 3.6's interpreter makes an int of a 1-element array: numpy 2.3 warns of that, and numpy 2.4 refuses it.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")

DTYPES = [torch.float32, torch.float16]


@pytest.fixture(scope="module", autouse=True)
def _language() -> Iterator[None]:
    with language_patched_once():
        yield


@triton.jit
def _loop_to_a_loaded_bound(bound: Any, out: Any) -> None:
    total = 0
    for index in range(tl.load(bound)):
        total += index
    tl.store(out, total)


def _can_loop_to_a_loaded_bound() -> bool:
    out = torch.zeros(1, dtype=torch.int32)
    try:
        _loop_to_a_loaded_bound[(1,)](torch.tensor([3], dtype=torch.int32), out)
    except triton.runtime.errors.InterpreterError:
        return False
    return out.item() == 3


needs_loops = pytest.mark.skipif(
    "not _can_loop_to_a_loaded_bound()", reason="this triton's interpreter cannot loop to a loaded bound on this numpy"
)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare with one rounding step of the dtype; NaN only where the twin has one."""
    tolerance = 2e-3 if actual.dtype == torch.float16 else 2e-6
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 2049), (2, 3, 10)])
def test_rms_norm_equals_its_twin(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = torch.randn(shape, dtype=dtype), torch.randn(shape[-1], dtype=dtype)
    close(rms_norm_triton(x, weight, eps=1e-5), rms_norm_reference(x, weight, eps=1e-5))


def test_rms_norm_takes_heads_out_of_a_merged_row() -> None:
    merged, weight = torch.randn(3, 5, 8), torch.randn(8)
    close(rms_norm_triton(merged[:, 1:4], weight, eps=1e-5), rms_norm_reference(merged[:, 1:4], weight, eps=1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_equals_its_twin_and_leaves_its_inputs(dtype: torch.dtype) -> None:
    x, residual, weight = torch.randn(5, 9, dtype=dtype), torch.randn(5, 9, dtype=dtype), torch.randn(9, dtype=dtype)
    before = residual.clone()
    for actual, expected in zip(
        add_rms_norm_triton(x, residual, weight, eps=1e-5),
        add_rms_norm_reference(x, residual, weight, eps=1e-5),
        strict=True,
    ):
        close(actual, expected)
    assert torch.equal(residual, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 7, 1030])
def test_silu_mul_equals_its_twin(width: int, dtype: torch.dtype) -> None:
    gate_up = (torch.randn(3, 2 * width) * 5).to(dtype)
    close(silu_mul_triton(gate_up), silu_mul_reference(gate_up))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 33, 4100])
def test_the_token_mask_equals_its_twin(vocab: int, dtype: torch.dtype) -> None:
    logits = torch.randn(4, vocab, dtype=dtype)
    mask = torch.randint(-(2**31), 2**31 - 1, (3, -(-vocab // 32)), dtype=torch.int32)
    expected, rows = logits.clone(), torch.tensor([3, 0, 2])
    apply_token_mask_triton(logits, mask, rows)
    apply_token_mask_reference(expected, mask, rows)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("vocab", [1, 5, 1024, 3000])
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, 1.0), (0, 0.9), (0, 0.2), (7, 1.0), (40, 0.8), (1, 1.0), (0, 0.0), (5000, 1.0)]
)
def test_drawn_tokens_equal_their_twins(vocab: int, top_k: int, top_p: float) -> None:
    probabilities = (torch.randn(4, vocab) * 3).softmax(dim=-1)
    probabilities[1, ::2] = 0.0
    probabilities[2] = 2.0**-12  # all the same; a power of two, so that no order of summing rounds
    rows = {"top_k": torch.full((4,), top_k), "top_p": torch.full((4,), top_p)}
    draws = torch.tensor([0.0, 0.3, 0.7, 0.98])  # nearer to 1 the rounding of the sum would tell
    tokens = draw_tokens_triton(probabilities, draws, **rows)
    assert tokens.tolist() == draw_tokens_reference(probabilities, draws, **rows).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_dim", "rot_dim"), [(10, 6), (8, 8), (2, 2)])
def test_rope_equals_its_twin(layer_case: Any, head_dim: int, rot_dim: int, dtype: torch.dtype) -> None:
    case = layer_case([0] * 5, head_dim=head_dim, rot_dim=rot_dim, dtype=dtype)
    expected = case.clone()
    rope_triton(case.query, case.key, case.step.positions, case.cos_sin)
    rope_reference(expected.query, expected.key, expected.step.positions, expected.cos_sin)
    for actual, wanted in zip(case.written, expected.written, strict=True):
        close(actual.to(dtype), wanted.to(dtype))


@pytest.mark.parametrize(("dtype", "cache_dtype"), [(torch.float32, torch.float16), (torch.float16, torch.float16)])
def test_write_kv_fills_its_slots_and_nothing_else(
    layer_case: Any, dtype: torch.dtype, cache_dtype: torch.dtype
) -> None:
    case = layer_case([7, -1, 0, 11, -1], kv_heads=2, dtype=dtype, cache_dtype=cache_dtype)
    expected = case.clone()
    write_kv_triton(case.key, case.value, case.cache, case.step.slots)
    write_kv_reference(expected.key, expected.value, expected.cache, expected.step.slots)
    for actual, wanted in zip(case.written, expected.written, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_dim", "rot_dim"), [(10, 6), (8, 8)])
def test_rope_and_write_kv_equals_the_two_ops(layer_case: Any, head_dim: int, rot_dim: int, dtype: torch.dtype) -> None:
    case = layer_case([5, -1, 1, 9], kv_heads=2, heads=4, head_dim=head_dim, rot_dim=rot_dim, dtype=dtype)
    expected = case.clone()
    for one, run in ((case, rope_and_write_kv_triton), (expected, rope_and_write_kv_reference)):
        run(one.query, one.key, one.value, one.cos_sin, one.cache, one.step)
    for actual, wanted in zip(case.written, expected.written, strict=True):
        close(actual.to(dtype), wanted.to(dtype))


def check_product(x: torch.Tensor, weight: GroupedWeight, bias: torch.Tensor | None) -> None:
    """Compare with the exact product of the widened weight: each sum may err by a few roundings of its parts' sizes."""
    actual = grouped_linear_triton(x, weight, bias, dtype=torch.float32)
    whole, added = weight.widened().to(x.dtype).double(), torch.zeros(()) if bias is None else bias.double()
    expected, sizes = x.double() @ whole.T + added, x.double().abs() @ whole.abs().T + added.abs()
    assert bool(((actual - expected).abs() <= 2e-6 * sizes).all())
    twin = grouped_linear_reference(x, weight, bias, dtype=torch.float32)
    assert bool(((twin - expected).abs() <= 2e-6 * sizes).all())
    assert torch.equal(grouped_linear_triton(x, weight, bias, dtype=x.dtype), actual.to(x.dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [*LAYOUTS, *SHARED, *SPLIT], ids=str)
def test_a_packed_weight_is_multiplied_like_the_widened_one(layout: Layout, dtype: torch.dtype) -> None:
    weight, x = random_weight(layout, 41, 384), torch.randn(5, 384)
    check_product(x.to(dtype), weight, torch.randn(41).to(dtype))


@pytest.mark.parametrize("layout", [LAYOUTS[0], LAYOUTS[-1], SPLIT[-1]], ids=str)
@pytest.mark.parametrize(
    ("rows", "width", "depth"), [(1, 1, 32), (17, 33, 96), (70, 130, 160), (130, 64, 64), (0, 5, 32)]
)
def test_a_packed_weight_of_any_shape_is_multiplied(layout: Layout, rows: int, width: int, depth: int) -> None:
    weight, merged = random_weight(layout, width, depth), torch.randn(rows, depth + 3)
    check_product(merged[:, 3:].half(), weight, None)


def test_a_packed_weights_numbers_are_rounded_once_to_the_dtype_of_rows() -> None:
    weight = random_weight(LAYOUTS[-1], 40, 96)
    ones = torch.eye(96).half()  # each product is one number of the weight
    product = grouped_linear_triton(ones, weight, None, dtype=torch.float32)
    assert torch.equal(product, weight.widened().half().float().T)


DECODES = [(1, 1), (1, 5), (1, 13), (1, 4)]
PREFILLS = [(1, 1), (7, 7), (4, 4)]
CHUNKS_AND_DECODES = [(1, 9), (6, 11), (1, 1), (3, 3), (2, 17)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 3, 100])
@pytest.mark.parametrize("lengths", [DECODES, PREFILLS, CHUNKS_AND_DECODES], ids=["decode", "prefill", "mixed"])
@needs_loops
def test_attention_equals_its_twin(
    attention_case: Any, lengths: list[tuple[int, int]], window: int | None, dtype: torch.dtype
) -> None:
    case = attention_case(lengths, window=window, dtype=dtype)
    actual = case.run(paged_attention_triton)
    assert torch.isfinite(actual).all()
    close(actual, case.run(paged_attention_reference))


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("num_decodes", [0, 1, 3, 4])
@needs_loops
def test_decodes_that_come_first_have_a_launch_of_their_own(
    attention_case: Any, monkeypatch: pytest.MonkeyPatch, num_decodes: int, window: int | None, splits: int
) -> None:
    launched = []
    launch = attention_kernels._launch

    def noted(*given: Any, **options: Any) -> None:
        launched.append(given[-1])
        launch(*given, **options)

    monkeypatch.setattr(attention_kernels, "num_splits", lambda **_: splits)
    monkeypatch.setattr(attention_kernels, "_launch", noted)
    case = attention_case([(1, 9), (1, 0), (1, 21), (1, 4), (6, 11), (1, 1), (19, 19), (2, 17)], window=window)
    actual = case.run(paged_attention_triton, num_decodes=num_decodes)
    close(actual, case.run(paged_attention_reference))
    assert launched == ([range(num_decodes)] if num_decodes else []) + [range(num_decodes, 8)]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size"),
    [(1, 1, 16, 1), (4, 2, 20, 3), (6, 2, 80, 16), (20, 1, 8, 5)],
    ids=["mha", "odd-head", "wide", "group-over-a-tile"],
)
@needs_loops
def test_attention_takes_any_grouping_head_and_block_size(
    attention_case: Any, heads: int, kv_heads: int, head_dim: int, block_size: int
) -> None:
    case = attention_case([(3, 8), (1, 6)], heads=heads, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size)
    close(case.run(paged_attention_triton), case.run(paged_attention_reference))


@needs_loops
def test_attention_walks_several_key_and_query_tiles(attention_case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    small = AttentionConfig(block_m=16, block_n=16, block_d=16, num_warps=4, num_stages=1)
    monkeypatch.setattr(attention_kernels, "attention_config", lambda **_: small)
    for window in (None, 20):
        case = attention_case([(13, 50), (1, 37), (18, 18)], window=window)
        close(case.run(paged_attention_triton), case.run(paged_attention_reference))


@pytest.mark.parametrize("splits", [2, 8])
@needs_loops
def test_a_split_decode_equals_its_twin_also_where_splits_stay_empty(
    attention_case: Any, monkeypatch: pytest.MonkeyPatch, splits: int
) -> None:
    monkeypatch.setattr(attention_kernels, "num_splits", lambda **_: splits)
    small = AttentionConfig(block_m=16, block_n=16, block_d=16, num_warps=4, num_stages=1)
    monkeypatch.setattr(attention_kernels, "attention_config", lambda **_: small)
    case = attention_case([(1, 1), (1, 70), (1, 16), (1, 0), (1, 33)])
    close(case.run(paged_attention_triton), case.run(paged_attention_reference))


@pytest.mark.parametrize("lengths", [[(1, 3), (1, 0)], [(4, 4), (1, 0), (2, 5)]], ids=["decode", "mixed"])
@needs_loops
def test_a_padded_row_with_context_0_gives_zeros(attention_case: Any, lengths: list[tuple[int, int]]) -> None:
    case = attention_case(lengths)
    actual = case.run(paged_attention_triton)
    row = next(sum(q for q, _ in lengths[:i]) for i, (_, context) in enumerate(lengths) if context == 0)
    assert not actual[row].any()
    close(actual, case.run(paged_attention_reference))


@needs_loops
def test_sequences_without_query_rows_are_passed_over(attention_case: Any) -> None:
    case = attention_case([(0, 4), (3, 3), (0, 0), (2, 6), (0, 1)])
    close(case.run(paged_attention_triton), case.run(paged_attention_reference))


@needs_loops
def test_a_16_bit_cache_serves_fp32_queries(attention_case: Any) -> None:
    case = attention_case([(1, 5), (3, 6)], cache_dtype=torch.float16)
    close(case.run(paged_attention_triton), case.run(paged_attention_reference))


SINKS = torch.tensor([0.5, -3.0, 8.0])
LOGITS: dict[str, dict[str, Any]] = {
    "cap": {"soft_cap": 0.7},
    "sinks": {"sinks": SINKS},
    "no sink": {"sinks": torch.full((3,), -torch.inf)},
    "both": {"soft_cap": 0.7, "sinks": SINKS},
}


def _agree(case: Any, **logits: Any) -> None:
    """Compare kernel and twin, which must differ from plain attention by far more than the tolerance."""
    actual, expected = (case.run(op, **logits) for op in (paged_attention_triton, paged_attention_reference))
    assert torch.isfinite(actual).all()
    close(actual, expected)
    is_plain = "soft_cap" not in logits and not logits["sinks"].isfinite().any()
    difference = float((expected - case.run(paged_attention_reference)).abs().max())
    assert difference == 0.0 if is_plain else difference > 0.05


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("lengths", [DECODES, CHUNKS_AND_DECODES], ids=["decode", "mixed"])
@pytest.mark.parametrize("logits", LOGITS)
@needs_loops
def test_attention_with_a_cap_or_sinks_equals_its_twin(
    attention_case: Any, logits: str, lengths: list[tuple[int, int]], window: int | None, dtype: torch.dtype
) -> None:
    _agree(attention_case(lengths, window=window, dtype=dtype), **LOGITS[logits])


@pytest.mark.parametrize("splits", [2, 8])
@pytest.mark.parametrize("logits", LOGITS)
@needs_loops
def test_a_split_decode_counts_its_sinks_once(
    attention_case: Any, monkeypatch: pytest.MonkeyPatch, splits: int, logits: str
) -> None:
    monkeypatch.setattr(attention_kernels, "num_splits", lambda **_: splits)
    small = AttentionConfig(block_m=16, block_n=16, block_d=16, num_warps=4, num_stages=1)
    monkeypatch.setattr(attention_kernels, "attention_config", lambda **_: small)
    _agree(attention_case([(1, 1), (1, 70), (1, 16), (1, 0), (1, 33)]), **LOGITS[logits])


@needs_loops
def test_sinks_belong_to_their_heads_over_several_tiles_and_kv_heads(
    attention_case: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = AttentionConfig(block_m=16, block_n=16, block_d=16, num_warps=4, num_stages=1)
    monkeypatch.setattr(attention_kernels, "attention_config", lambda **_: small)
    case = attention_case([(13, 50), (1, 37)], heads=6, kv_heads=2, dtype=torch.float16)
    _agree(case, sinks=torch.tensor([0.5, -3.0, 8.0, 2.0, 1.0, 4.0]).half())


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
@pytest.mark.filterwarnings("ignore:overflow encountered in exp2:RuntimeWarning")  # numpy's; the kernel means to
@needs_loops
def test_a_cap_holds_for_logits_of_any_size(attention_case: Any, size: float) -> None:
    case = attention_case([(3, 9), (1, 13)])
    case.query.mul_(size)
    close(case.run(paged_attention_triton, soft_cap=2.0), case.run(paged_attention_reference, soft_cap=2.0))


@pytest.mark.parametrize("lengths", [[(1, 3), (1, 0)], [(4, 4), (1, 0), (2, 5)]], ids=["decode", "mixed"])
@needs_loops
def test_a_padded_row_gives_zeros_beside_a_sink(attention_case: Any, lengths: list[tuple[int, int]]) -> None:
    case = attention_case(lengths)
    row = next(sum(q for q, _ in lengths[:i]) for i, (_, context) in enumerate(lengths) if context == 0)
    assert not case.run(paged_attention_triton, sinks=SINKS)[row].any()
