from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engine.config import PolicyName
from engine.models.decoder import Decoder
from engine.scheduling.plan import StepPlan
from engine.scheduling.seat_table import SeatTable
from kernels.paged import LayerCache
from kernels.write_kv import write_kv
from tests.engine.builders import deltas_of, greedy, make_engine, new_request, run_all, runner_of
from tests.engine.tiny_models import VARIANTS, TinyModels

pytestmark = [pytest.mark.comparison, pytest.mark.long]


@pytest.mark.parametrize("name", VARIANTS)
def test_greedy_tokens_equal_transformers(name: str, tiny_models: TinyModels) -> None:
    model = tiny_models[name]
    assert run_all(make_engine(model), model) == model.expected


@pytest.mark.parametrize("name", ["llama-gqa", "mistral-window", "qwen2", "qwen3-layer-types"])
@pytest.mark.parametrize(("caching", "budget"), [(True, 128), (False, 128), (True, 16), (False, 19)])
def test_a_pool_that_preempts_gives_the_same_tokens(
    *, name: str, caching: bool, budget: int, tiny_models: TinyModels
) -> None:
    model = tiny_models[name]
    engine = make_engine(
        model,
        num_kv_blocks=10,
        enable_prefix_caching=caching,
        admission="prompt",
        max_num_batched_tokens=budget,
    )
    assert run_all(engine, model) == model.expected
    assert engine.stats().scheduler.num_preemptions > 0


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("budget", [6, 16, 512])
@pytest.mark.parametrize("policy", list(PolicyName))
def test_preemption_under_any_policy_gives_the_same_tokens(
    *, policy: PolicyName, budget: int, overlap: bool, tiny_models: TinyModels
) -> None:
    model = tiny_models["llama-gqa"].few(12)
    settings = {"policy": policy, "max_num_batched_tokens": budget, "max_num_seqs": 6, "admission": "prompt"}
    engine = make_engine(model, num_kv_blocks=24, block_size=4, overlap=overlap, **settings)
    assert run_all(engine, model) == model.expected
    assert engine.stats().scheduler.num_preemptions > 0


@pytest.mark.parametrize("budget", [16, 17, 512])
def test_every_chunk_size_gives_the_same_tokens(budget: int, tiny_models: TinyModels) -> None:
    model = tiny_models["qwen2-window-yarn"]
    engine = make_engine(model, max_num_batched_tokens=budget)
    assert run_all(engine, model) == model.expected


def test_a_budget_of_one_token_gives_the_same_tokens(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    engine = make_engine(model, max_num_seqs=1, max_num_batched_tokens=1)
    assert run_all(engine, model) == model.expected


@pytest.mark.parametrize("block_size", [1, 8, 32])
def test_every_block_size_gives_the_same_tokens(block_size: int, tiny_models: TinyModels) -> None:
    model = tiny_models["mistral-window"]
    engine = make_engine(model, block_size=block_size, num_kv_blocks=6400 // block_size)
    assert run_all(engine, model) == model.expected


def test_a_second_run_hits_the_prefix_cache_and_gives_the_same_tokens(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    engine = make_engine(model)
    run_all(engine, model)
    before = engine.stats().cache.num_cached_tokens
    assert run_all(engine, model) == model.expected
    assert engine.stats().cache.num_cached_tokens > before + 500


def test_blocks_whose_hashes_collide_give_the_same_tokens(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"].few(12)
    engine = make_engine(model, block_size=4)
    engine.scheduler.pool._digest = lambda content: b"the same for every block"
    for _ in range(2):
        assert run_all(engine, model) == model.expected
    assert engine.scheduler.pool.num_cached == 1


@pytest.mark.parametrize("name", ["llama-gqa", "mistral-window", "qwen3"])
def test_stale_blocks_full_of_nan_are_never_read(name: str, tiny_models: TinyModels) -> None:
    model = tiny_models[name].few(12)
    engine = make_engine(model, num_kv_blocks=100, enable_prefix_caching=False)
    for _ in range(2):  # the second time over blocks that were used
        runner_of(engine).fill_cache(float("nan"))
        assert run_all(engine, model) == model.expected
    engine.add(new_request(0, model.prompts[0], params=greedy(logprobs=3)))
    entries = [entry for delta in deltas_of(engine)[0, 0] for entry in delta.logprobs or []]
    assert np.isfinite([value for entry in entries for value in (entry.logprob, *entry.top_logprobs)]).all()


def test_only_the_slots_of_tokens_are_written(tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_models["llama-gqa"].few(10)
    engine = make_engine(model, max_num_seqs=4, num_kv_blocks=60)
    runner_of(engine).fill_cache(7.0)
    live: set[int] = set()
    compute = runner_of(engine).forward

    def watched(plan: StepPlan, seats: SeatTable, **fields: Any) -> Any:
        for row, start, count in zip(plan.rows, plan.starts, plan.counts, strict=True):
            blocks = seats.block_tables[row]
            live.update(int(blocks[index // 16]) * 16 + index % 16 for index in range(start, start + count))
        return compute(plan, seats, **fields)

    monkeypatch.setattr(runner_of(engine), "forward", watched)
    run_all(engine, model)
    for layer in runner_of(engine)._cache:
        for part, slots in zip(layer, slot_of_each_element(*layer), strict=True):
            assert set(slots[part != 7.0].long().tolist()) == live


def slot_of_each_element(keys: torch.Tensor, values: torch.Tensor) -> LayerCache:
    """Return caches of the same shapes that hold, wherever a token's key and value lie, the number of its slot."""
    blocks, heads, block_size, dim = keys.shape
    slots = torch.arange(blocks * block_size)
    numbers = slots.to(keys.dtype)[:, None, None].expand(-1, heads, dim).contiguous()
    own = LayerCache(torch.empty_like(keys), torch.empty_like(values))
    write_kv(numbers, numbers, own, slots)
    return own


def test_bfloat16_runs_and_mostly_agrees_with_float32(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    outputs = run_all(make_engine(model, dtype="bfloat16"), model)
    first_tokens = [ours[0] == theirs[0] for ours, theirs in zip(outputs, model.expected, strict=True)]
    assert sum(first_tokens) >= 40


def test_logits_are_not_rounded_to_bfloat16_where_panels_are_multiplied(tiny_models: TinyModels) -> None:
    decoder = runner_of(make_engine(tiny_models["llama-gqa"], dtype="bfloat16"))._model
    assert isinstance(decoder, Decoder)
    assert decoder._head is not None
    if not decoder._head.is_compiled:
        pytest.skip("this machine multiplies no panels")
    hidden = torch.linspace(-2, 2, 3 * decoder.config.hidden_size).view(3, -1).bfloat16()
    logits = decoder.logits(hidden, torch.zeros_like(hidden))
    assert logits.dtype == torch.float32
    assert not torch.equal(logits, logits.bfloat16().float())
