"""Tests of preempted sequences whose KV is copied to host memory and back instead of being recomputed."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from engine.build import build_engine
from engine.config import Admission, EngineConfig
from engine.device.host_cache import HostCache, seconds_per_block
from engine.params import SamplingParams
from engine.scheduling.plan import BlockCopy
from engine.scheduling.swap import SwapRule, SwapSpace
from tests.engine.builders import new_request
from tests.engine.simulated_engine import SimulatedEngine, expected_output
from tests.engine.tiny_models import TinyModels

CHEAP_COPIES = SwapRule(seconds_per_block=1.0, seconds_per_token=1.0)
DEAR_COPIES = SwapRule(seconds_per_block=5.0, seconds_per_token=1.0)


def crowded(swap: SwapSpace | None, **settings: Any) -> tuple[SimulatedEngine, list[list[int]]]:
    """Run more sequences than the pool holds, so that some are preempted; return the engine and the prompts."""
    engine = SimulatedEngine(num_blocks=25, admission=Admission.PROMPT, swap=swap, **settings)
    rng = random.Random(5)
    prompts = [[rng.randrange(90) for _ in range(rng.randint(4, 14))] for _ in range(12)]
    for prompt in prompts:
        engine.add(prompt, 20)
    engine.run()
    return engine, prompts


@pytest.mark.parametrize("caching", [True, False])
def test_swapping_computes_less_and_gives_the_same_tokens(*, caching: bool) -> None:
    plain, prompts = crowded(None, enable_prefix_caching=caching)
    swap = SwapSpace(100, CHEAP_COPIES)
    swapping, _ = crowded(swap, enable_prefix_caching=caching)
    assert swapping.scheduler.counters.num_swaps > 0
    assert swapping.scheduler.counters.num_computed_tokens < plain.scheduler.counters.num_computed_tokens
    assert swap.num_free == swap.num_blocks
    for request_id, prompt in enumerate(prompts):
        assert swapping.finished[request_id][0].token_ids == [*prompt, *expected_output(prompt, 20)]


def test_nothing_is_copied_where_computing_again_is_cheaper() -> None:
    engine, _ = crowded(SwapSpace(100, DEAR_COPIES))
    assert engine.scheduler.counters.num_preemptions > 0
    assert engine.scheduler.counters.num_swaps == 0


def test_a_full_host_memory_means_computing_again() -> None:
    swap = SwapSpace(4, CHEAP_COPIES)
    engine, _ = crowded(swap)
    assert engine.scheduler.counters.num_preemptions > engine.scheduler.counters.num_swaps
    assert swap.num_free == 4


def test_an_aborted_sequence_gives_its_host_blocks_back() -> None:
    swap = SwapSpace(100, CHEAP_COPIES)
    engine = SimulatedEngine(num_blocks=25, admission=Admission.PROMPT, swap=swap)
    for start in range(12):
        engine.add([start, *range(10)], 20)
    while not engine.scheduler.counters.num_swaps:
        engine.step()
    engine.scheduler.check_integrity()
    for request_id in range(12):
        engine.scheduler.abort(request_id)
    engine.scheduler.check_integrity()
    assert swap.num_free == swap.num_blocks


def test_blocks_come_back_bit_for_bit() -> None:
    cache = [(torch.randn(6, 2, 4, 8), torch.randn(6, 2, 4, 8)) for _ in range(3)]
    before = [(keys.clone(), values.clone()) for keys, values in cache]
    host = HostCache(cache, 5)
    host.copy_out(cache, [BlockCopy(device_blocks=[1, 4], host_blocks=[3, 0])])
    for keys, values in cache:
        keys.fill_(torch.nan)
        values.fill_(torch.nan)
    host.copy_in(cache, [BlockCopy(device_blocks=[5], host_blocks=[3]), BlockCopy(device_blocks=[2], host_blocks=[0])])
    for (keys, values), (old_keys, old_values) in zip(cache, before, strict=True):
        for now, then in ((keys, old_keys), (values, old_values)):
            assert torch.equal(now[5], then[1])
            assert torch.equal(now[2], then[4])
            assert now[[0, 1, 3, 4]].isnan().all()


def test_a_short_context_can_have_swap_space(tiny_models: TinyModels) -> None:
    path = str(tiny_models["qwen3"].path)
    build_engine(EngineConfig(model=path, max_model_len=32, swap_space_gib=0.001, num_kv_blocks=300, warm_up=False))


def test_a_measured_copy_takes_some_time() -> None:
    assert 0.0 < seconds_per_block([(torch.zeros(4, 2, 4, 8), torch.zeros(4, 2, 4, 8))]) < 10.0


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"seed": 3}])
def test_the_model_gives_the_same_tokens_over_swapped_blocks(
    params: dict[str, Any], *, caching: bool, tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SwapRule, "prefers_swap", lambda self, **sizes: True)
    model = tiny_models["qwen3"]
    outputs = []
    for settings in ({"num_kv_blocks": 400}, {"num_kv_blocks": 10, "swap_space_gib": 0.01}):
        config = EngineConfig(
            model=str(model.path),
            dtype="float32",
            max_num_seqs=16,
            max_num_batched_tokens=64,
            enable_prefix_caching=caching,
            admission=Admission.PROMPT,
            warm_up=False,
            **settings,
        )
        engine = build_engine(config)
        engine.scheduler.pool.check_integrity([])
        tokens: list[list[int]] = [[] for _ in model.prompts]
        for index, prompt in enumerate(model.prompts):
            engine.add(new_request(index, prompt, params=SamplingParams(max_tokens=20, ignore_eos=True, **params)))
        told = {}
        while engine.has_work:
            for delta in engine.step():
                tokens[delta.request_id] += delta.token_ids
                told[delta.request_id] = delta.num_preemptions, delta.num_swaps
            engine.scheduler.check_integrity()
        outputs.append(tokens)
        counters = engine.stats().scheduler
        assert tuple(map(sum, zip(*told.values(), strict=True))) == (counters.num_preemptions, counters.num_swaps)
    assert counters.num_swaps > 0
    assert outputs[0] == outputs[1]
