"""Tests of soft caps and sinks in paged attention: the twin against a dense softmax, the CPU path against the twin."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.cpu.attention.words import AT
from kernels.cpu.runtime.launch import record
from kernels.errors import KernelInputError
from kernels.paged import AttentionRule, LayerCache, PagedStep
from kernels.paged_attention import paged_attention, paged_attention_reference

pytestmark = pytest.mark.comparison

PAIRS = [(a, b) for a in (torch.float32, torch.bfloat16) for b in (torch.float32, torch.bfloat16)]
BATCHES = {
    "decodes": [(1, 1), (1, 33), (1, 300), (1, 70), (1, 64)],
    "prefills": [(1, 1), (40, 40), (7, 7), (33, 33)],
    "mixed": [(1, 90), (50, 131), (1, 1), (3, 3), (2, 17), (70, 75), (4, 66)],
}
SINKS = torch.tensor([0.5, -3.0, 8.0, 2.0, -torch.inf, 1.0])
LOGITS: dict[str, dict[str, Any]] = {
    "cap": {"soft_cap": 1.5},
    "loose cap": {"soft_cap": 50.0},
    "sinks": {"sinks": SINKS},
    "both": {"soft_cap": 0.3, "sinks": SINKS},
}


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare with the error of one rounding step of the dtype; NaN nowhere."""
    assert torch.isfinite(actual).all()
    step = {torch.float32: 5e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}[actual.dtype]
    torch.testing.assert_close(actual, expected, rtol=step, atol=step)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("soft_cap", [None, 0.7])
@pytest.mark.parametrize("sinks", [None, SINKS[:4]], ids=["no sinks", "sinks"])
def test_the_twin_equals_a_dense_softmax(
    soft_cap: float | None, sinks: torch.Tensor | None, window: int | None
) -> None:
    context_len, query_len = 8, 3
    keys, values, query = torch.randn(2, 2, 4, 16), torch.randn(2, 2, 4, 16), torch.randn(query_len, 4, 16)
    out = paged_attention_reference(
        query,
        LayerCache(keys, values),
        PagedStep(
            block_tables=torch.tensor([[1, 0]], dtype=torch.int32),
            query_start=torch.tensor([0, query_len], dtype=torch.int32),
            context_lens=torch.tensor([context_len], dtype=torch.int32),
            slots=torch.empty(0, dtype=torch.int64),
            positions=torch.empty(0, dtype=torch.int64),
            max_query_len=query_len,
            max_context_len=context_len,
        ),
        AttentionRule(scale=0.3, window=window, soft_cap=soft_cap, sinks=sinks),
    )
    for token in range(query_len):
        for head in range(4):
            own_keys, own_values = (torch.cat((part[1, head // 2], part[0, head // 2])) for part in (keys, values))
            position = context_len - query_len + token
            first = 0 if window is None else position + 1 - window
            logits = 0.3 * own_keys[first : position + 1] @ query[token, head]
            if soft_cap is not None:
                logits = soft_cap * torch.tanh(logits / soft_cap)
            weights = logits.double().exp()
            total = weights.sum() + (0.0 if sinks is None else sinks[head].double().exp())
            expected = (weights / total) @ own_values[first : position + 1].double()
            torch.testing.assert_close(out[token, head].double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "cache_dtype"), PAIRS)
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("kv_heads", "block_size"), [(2, 16), (6, 8)])
@pytest.mark.parametrize("logits", LOGITS)
def test_attention_equals_its_twin(
    attention_case: Any,
    logits: str,
    kv_heads: int,
    block_size: int,
    batch: str,
    window: int | None,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
) -> None:
    case = attention_case(
        BATCHES[batch],
        heads=6,
        kv_heads=kv_heads,
        block_size=block_size,
        window=window,
        dtype=dtype,
        cache_dtype=cache_dtype,
    )
    actual, expected = (case.run(op, **LOGITS[logits]) for op in (paged_attention, paged_attention_reference))
    close(actual, expected)
    # The options change results far beyond the tolerance, so the twin would fail without them.
    if logits != "loose cap":
        assert (expected - case.run(paged_attention_reference)).abs().max() > 0.05


@pytest.mark.parametrize("kv_heads", [2, 6])
@pytest.mark.parametrize("size", [1e-6, 1e-3, 0.1, 1.0, 30.0, 1e4])
def test_a_cap_is_exact_for_logits_of_any_size(attention_case: Any, kv_heads: int, size: float) -> None:
    # One product a logit: a sum of large ones that cancel would carry more rounding than the cap forgives.
    case = attention_case([(1, 40), (40, 40)], heads=6, kv_heads=kv_heads, head_dim=1)
    case.query.mul_(size)
    actual, expected = (case.run(op, soft_cap=2.0) for op in (paged_attention, paged_attention_reference))
    close(actual, expected)


@pytest.mark.parametrize("heads", [3, 6])
@pytest.mark.parametrize("sink", [-1e5, 1e5])
def test_a_sink_of_any_size_takes_nothing_or_all(attention_case: Any, heads: int, sink: float) -> None:
    case = attention_case([(1, 40), (40, 40)], heads=heads, kv_heads=3)
    actual = case.run(paged_attention, sinks=torch.full((heads,), sink))
    close(actual, case.run(paged_attention_reference) if sink < 0 else torch.zeros_like(actual))


def test_sinks_may_have_the_dtype_of_the_query(attention_case: Any) -> None:
    case = attention_case([(1, 40), (9, 13)], heads=6, dtype=torch.bfloat16)
    sinks = SINKS.bfloat16()
    assert torch.equal(case.run(paged_attention, sinks=sinks), case.run(paged_attention, sinks=sinks.float()))


@pytest.mark.parametrize("lengths", [[(1, 3), (1, 0)], [(4, 4), (1, 0), (2, 5)]], ids=["decode", "mixed"])
def test_a_padded_row_with_context_0_gives_zeros_beside_a_sink(
    attention_case: Any, lengths: list[tuple[int, int]]
) -> None:
    case = attention_case(lengths)
    row = next(sum(q for q, _ in lengths[:i]) for i, (_, context) in enumerate(lengths) if context == 0)
    for op in (paged_attention, paged_attention_reference):
        assert not case.run(op, soft_cap=1.0, sinks=torch.zeros(3))[row].any()


def test_a_key_that_is_nan_stays_nan_under_a_cap(attention_case: Any) -> None:
    for heads, kv_heads in ((2, 1), (3, 3)):
        case = attention_case([(30, 30), (1, 9)], heads=heads, kv_heads=kv_heads)
        block = case.step.block_tables[0, 29 // 4]
        case.cache.keys[block, 0, 29 % 4] = torch.nan
        is_nan = case.run(paged_attention, soft_cap=2.0)[:, 0].isnan().any(-1)
        assert is_nan[29]
        assert not is_nan[30]


def test_fp16_runs_through_the_twin(attention_case: Any) -> None:
    case = attention_case([(3, 9), (1, 4)], heads=6, dtype=torch.float16)
    ours, twin = (case.run(op, **LOGITS["both"]) for op in (paged_attention, paged_attention_reference))
    assert torch.equal(ours, twin)


def test_converted_sinks_live_as_long_as_a_recording(attention_case: Any) -> None:
    case = attention_case([(1, 9)], heads=6, dtype=torch.bfloat16)
    with record() as recording:
        case.run(paged_attention, sinks=SINKS.bfloat16())
    assert recording.calls[-1].words[AT.sinks - AT.query] in {tensor.data_ptr() for tensor in recording.outputs}


@pytest.mark.parametrize("soft_cap", [0.0, -1.0, float("inf"), float("nan")])
def test_a_soft_cap_that_caps_nothing_is_named(attention_case: Any, soft_cap: float) -> None:
    with pytest.raises(KernelInputError, match=rf"soft_cap {soft_cap}; give None or a finite number above 0"):
        attention_case([(1, 3)]).run(paged_attention, soft_cap=soft_cap)


@pytest.mark.parametrize(
    ("sinks", "reason"),
    [
        (torch.zeros(4), r"sinks torch\.float32 \(4,\)"),
        (torch.zeros(1, 3), r"sinks torch\.float32 \(1, 3\)"),
        (torch.zeros(6)[::2], r"strides \(2,\)"),
        (torch.zeros(3, dtype=torch.float64), r"sinks torch\.float64"),
        (torch.zeros(3, device="meta"), "on meta"),
    ],
)
def test_sinks_of_another_shape_dtype_or_device_are_named(
    attention_case: Any, sinks: torch.Tensor, reason: str
) -> None:
    with pytest.raises(KernelInputError, match=reason):
        attention_case([(1, 3)]).run(paged_attention, sinks=sinks)
