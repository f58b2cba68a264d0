"""Tests of paged attention on the CPU against its twin: decodes, prefills, chunks, windows, poison, threads, cache."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.cpu.runtime import amx
from kernels.errors import KernelInputError
from kernels.paged import LayerCache
from kernels.paged_attention import paged_attention, paged_attention_reference

pytestmark = [pytest.mark.comparison, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[3]
PAIRS = [(a, b) for a in (torch.float32, torch.bfloat16) for b in (torch.float32, torch.bfloat16)]
BATCHES = {
    "decodes": [(1, 1), (1, 33), (1, 8), (1, 70), (1, 64)],
    "prefills": [(1, 1), (40, 40), (7, 7), (33, 33)],
    "mixed": [(1, 90), (50, 131), (1, 1), (3, 3), (2, 17), (70, 75), (4, 66)],
}


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare with the error of one rounding step of the dtype; NaN nowhere."""
    assert torch.isfinite(actual).all()
    step = {torch.float32: 5e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}[actual.dtype]
    torch.testing.assert_close(actual, expected, rtol=step, atol=step)


@pytest.mark.parametrize(("dtype", "cache_dtype"), PAIRS)
@pytest.mark.parametrize("window", [None, 5, 40])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("kv_heads", "block_size"), [(2, 8), (2, 16), (6, 16)])
def test_attention_equals_its_twin(
    attention_case: Any,
    batch: str,
    kv_heads: int,
    block_size: int,
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
    close(case.run(paged_attention), case.run(paged_attention_reference))


@pytest.mark.parametrize(("block_size", "window"), [(16, None), (16, 40), (4, None)])
def test_bf16_in_fp32_is_the_fp32_result_rounded_once(
    monkeypatch: pytest.MonkeyPatch, attention_case: Any, block_size: int, window: int | None
) -> None:
    monkeypatch.setattr(amx, "can_use", lambda: False)
    case = attention_case(
        BATCHES["mixed"], heads=6, kv_heads=2, block_size=block_size, window=window, dtype=torch.bfloat16
    )
    exact = replace(case, query=case.query.float()).run(paged_attention)
    assert torch.isfinite(exact).all()
    assert torch.equal(case.run(paged_attention, in_float32=True), exact.bfloat16())


@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size"),
    [
        *((1, 1, 1, 1), (4, 4, 20, 3), (9, 3, 64, 32), (7, 1, 80, 16), (2, 1, 128, 256), (100, 1, 8, 5)),
        *((2, 1, 33, 16), (3, 3, 7, 4), (6, 6, 200, 48), (4, 2, 18, 16), (5, 1, 32, 64)),
    ],
)
def test_attention_takes_any_grouping_head_and_block_size(
    attention_case: Any, heads: int, kv_heads: int, head_dim: int, block_size: int, cache_dtype: torch.dtype
) -> None:
    case = attention_case(
        [(1, 11), (9, 14), (1, 1), (35, 77)],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        cache_dtype=cache_dtype,
    )
    close(case.run(paged_attention), case.run(paged_attention_reference))


def test_random_batches_equal_their_twin(attention_case: Any) -> None:
    chooser = random.Random(7)
    for seed in range(25):
        lengths = []
        for _ in range(chooser.randint(1, 9)):
            query_len = chooser.choice([0, 1, 1, 1, 2, chooser.randint(1, 80)])
            lengths.append((query_len, query_len + chooser.randint(0, 90)))
        window = chooser.choice([None, 1, chooser.randint(1, 100)])
        block_size = chooser.choice([4, 16, 32])
        case = attention_case([*lengths, (1, 2)], heads=6, kv_heads=3, block_size=block_size, window=window, seed=seed)
        close(case.run(paged_attention), case.run(paged_attention_reference))


def test_fp16_runs_through_the_twin(attention_case: Any) -> None:
    case = attention_case([(3, 9), (1, 4)], dtype=torch.float16)
    close(case.run(paged_attention), case.run(paged_attention_reference))


def test_a_padded_row_with_context_0_gives_zeros(attention_case: Any) -> None:
    case = attention_case([(1, 3), (1, 0), (5, 5)])
    actual = case.run(paged_attention)
    assert not actual[1].any()
    close(actual, case.run(paged_attention_reference))


def test_rows_behind_the_last_sequence_disturb_nothing(attention_case: Any) -> None:
    case = attention_case([(1, 20), (1, 33)], heads=100, kv_heads=1)
    longer = torch.cat((case.query, torch.full((9, *case.query.shape[1:]), torch.nan)))
    padded = replace(case, query=longer).run(paged_attention, num_decodes=2)
    assert torch.equal(padded[:2], case.run(paged_attention, num_decodes=2))


def test_an_empty_batch_gives_an_empty_result(attention_case: Any) -> None:
    assert attention_case([(0, 3)]).run(paged_attention).shape == (0, 3, 16)


def alone(case: Any, cache: LayerCache, place: tuple[int, int, int], soft_cap: float | None) -> torch.Tensor:
    """Attend one query token of a batch by itself: place = (token, its sequence, its context)."""
    token, sequence, context = place
    step = replace(
        case.step,
        block_tables=case.step.block_tables[sequence : sequence + 1],
        query_start=torch.tensor([0, 1], dtype=torch.int32),
        context_lens=torch.tensor([context], dtype=torch.int32),
        max_query_len=1,
        max_context_len=context,
    )
    return paged_attention(case.query[token : token + 1], cache, step, replace(case.rule, soft_cap=soft_cap))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("window", "soft_cap"), [(None, None), (70, None), (None, 1.5)])
@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
@pytest.mark.parametrize("block_size", [4, 16])
def test_a_row_depends_on_nothing_but_its_token(
    attention_case: Any,
    block_size: int,
    kv_heads: int,
    window: int | None,
    soft_cap: float | None,
    dtype: torch.dtype,
) -> None:
    lengths = [(1, 21), (1, 300), (1, 129), (9, 30), (60, 280), (3, 140), (1, 40)]
    case = attention_case(lengths, heads=6, kv_heads=kv_heads, block_size=block_size, window=window, dtype=dtype)
    cache, whole, token = case.as_written(), case.run(paged_attention, soft_cap=soft_cap), 0
    assert torch.equal(whole, case.run(paged_attention, soft_cap=soft_cap, num_decodes=3))
    for sequence, (query_len, context) in enumerate(lengths):
        for context_now in range(context - query_len + 1, context + 1):
            assert torch.equal(whole[token : token + 1], alone(case, cache, (token, sequence, context_now), soft_cap))
            token += 1


def test_a_row_does_not_depend_on_the_size_of_blocks(attention_case: Any) -> None:
    case = attention_case([(1, 200), (30, 150)], heads=6, kv_heads=2, head_dim=32, dtype=torch.bfloat16, block_size=32)
    small = (part.unflatten(2, (4, 8)).transpose(1, 2).flatten(0, 1).contiguous() for part in case.cache)
    tables = (4 * case.step.block_tables[:, :, None] + torch.arange(4, dtype=torch.int32)).flatten(1)
    other = replace(case, cache=LayerCache(*small), step=replace(case.step, block_tables=tables))
    assert torch.equal(case.run(paged_attention), other.run(paged_attention))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_decodes", [1, 5, 40])
def test_decodes_that_share_blocks_equal_their_twin(attention_case: Any, num_decodes: int, dtype: torch.dtype) -> None:
    case = attention_case([(1, 150)] * 40 + [(9, 170)], heads=6, kv_heads=2, block_size=16, dtype=dtype)
    tables, contexts = case.step.block_tables, case.step.context_lens
    tables[:, :7] = tables[0, :7].clone()
    contexts[:40] -= torch.arange(40, dtype=torch.int32)
    close(case.run(paged_attention, num_decodes=num_decodes), case.run(paged_attention_reference))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 200, 300])
@pytest.mark.parametrize(("kv_heads", "block_size"), [(1, 16), (2, 4), (3, 16), (6, 256)])
def test_decodes_that_share_blocks_have_the_bits_that_each_has_alone(
    attention_case: Any, kv_heads: int, block_size: int, window: int | None, dtype: torch.dtype
) -> None:
    lengths = [(1, length) for length in (400, 400, 399, 384, 383, 300, 257, 256, 255, 128, 127, 40, 512)]
    case = attention_case(lengths, heads=6, kv_heads=kv_heads, block_size=block_size, dtype=dtype)
    case, tables = replace(case, rule=replace(case.rule, window=window)), case.step.block_tables
    tables[:12, : 256 // block_size] = tables[0, : 256 // block_size].clone()
    tables[6, 128 // block_size] = tables[12, 0]  # one that has another second round than its neighbours
    cache, whole = case.as_written(), case.run(paged_attention, num_decodes=len(lengths))
    for row, (_, context) in enumerate(lengths):
        assert torch.equal(whole[row : row + 1], alone(case, cache, (row, row, context), None))


@pytest.mark.parametrize("group", range(1, 10))
@pytest.mark.parametrize(("dtype", "cache_dtype"), PAIRS)
def test_decodes_of_any_group_and_length_equal_their_twin(
    attention_case: Any, group: int, dtype: torch.dtype, cache_dtype: torch.dtype
) -> None:
    case = attention_case(
        [(1, length) for length in (1, 15, 16, 17, 63, 64, 65, 129, 200)],
        heads=2 * group,
        kv_heads=2,
        head_dim=64 + 8 * group,
        block_size=group,
        dtype=dtype,
        cache_dtype=cache_dtype,
    )
    close(case.run(paged_attention), case.run(paged_attention_reference))


@pytest.mark.parametrize("block_size", [4, 16])
def test_a_key_that_is_nan_makes_its_own_rows_nan_and_no_others(attention_case: Any, block_size: int) -> None:
    case = attention_case([(2, 100), (1, 50)], heads=2, block_size=block_size, dtype=torch.bfloat16)
    block = case.step.block_tables[0, 99 // block_size]
    case.cache.keys[block, 0, 99 % block_size] = torch.nan
    rows_with_nan = case.run(paged_attention).isnan().flatten(1)
    assert rows_with_nan[1].all()
    assert not rows_with_nan[[0, 2]].any()


@pytest.mark.parametrize("block_size", [4, 16])
def test_nobody_looks_up_a_block_before_the_window(attention_case: Any, block_size: int) -> None:
    case = attention_case([(1, 250), (20, 150)], heads=6, kv_heads=2, block_size=block_size, window=9)
    expected, tables = case.run(paged_attention), case.step.block_tables
    for row, first_seen in enumerate((250 - 9, 150 - 20 - 9 + 1)):
        tables[row, : first_seen // block_size] = -1
    assert torch.equal(case.run(paged_attention), expected)


def test_a_block_id_outside_the_cache_is_an_error(attention_case: Any) -> None:
    for lengths, place in ([(1, 3)], 0), ([(30, 30)], 0), ([(1, 200)], 9), ([(1, 3), (1, 200)], 9):
        for block_size in (4, 16):
            case = attention_case(lengths, heads=3, kv_heads=3, block_size=block_size)
            case.step.block_tables[-1, place] = 1_000
            with pytest.raises(KernelInputError, match="block outside the cache"):
                case.run(paged_attention)


def test_wrong_shapes_and_dtypes_are_named(attention_case: Any) -> None:
    case = attention_case([(1, 3)])
    wrong = replace(case, step=replace(case.step, block_tables=case.step.block_tables.long()))
    with pytest.raises(KernelInputError, match=r"block_tables torch\.int64"):
        wrong.run(paged_attention)
    with pytest.raises(KernelInputError, match="window 0"):
        case.run(paged_attention, window=0)


def test_calls_from_several_threads_do_not_disturb_each_other(attention_case: Any) -> None:
    cases = [
        attention_case([(1, 300), (60, 200), (1, 50)], heads=6, kv_heads=2, head_dim=32, seed=seed) for seed in range(4)
    ]
    expected = [case.run(paged_attention_reference) for case in cases]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(5):
            for actual, wanted in zip(threads.map(lambda c: c.run(paged_attention), cases), expected, strict=True):
                close(actual, wanted)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_the_result_does_not_depend_on_the_number_of_threads(attention_case: Any, num_threads: int) -> None:
    case = attention_case([(1, 300), (100, 260), (1, 50)], heads=6, kv_heads=3, head_dim=32)
    before, expected = torch.get_num_threads(), case.run(paged_attention)
    try:
        torch.set_num_threads(num_threads)
        assert torch.equal(case.run(paged_attention), expected)
    finally:
        torch.set_num_threads(before)


CACHE_PROBE = """
import torch
from numba.core import event
compiled = []
class Listener(event.Listener):
    def on_start(self, e): compiled.append(e)
    def on_end(self, e): pass
event.register("numba:compile", Listener())
from kernels.silu_mul import silu_mul
print(silu_mul(torch.tensor([[1.0, 2.0]])).item(), len(compiled))
"""


def _probe(**environment: str) -> tuple[float, int]:
    command = [sys.executable, "-W", "error", "-c", CACHE_PROBE]
    run = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    value, compilations = run.stdout.split()
    return float(value), int(compilations)


def test_a_cache_directory_that_cannot_be_made_stops_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    value, compilations = _probe(NUMBA_CACHE_DIR=str(blocked))
    assert value == pytest.approx(1.4621, abs=1e-4)
    assert compilations > 0
