from __future__ import annotations

import pytest

from engine.outputs import FinishReason
from engine.params import SamplingParams
from tests.engine.builders import make_engine, run_all
from tests.engine.tiny_models import VARIANTS, TinyModels


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


def test_stale_blocks_full_of_nan_are_never_read(tiny_models: TinyModels) -> None:
    model = tiny_models["qwen3"]
    engine = make_engine(model)
    engine._runner.fill_cache(float("nan"))
    assert run_all(engine, model) == model.expected


def test_bfloat16_runs_and_mostly_agrees_with_float32(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    outputs = run_all(make_engine(model, dtype="bfloat16"), model)
    first_tokens = [ours[0] == theirs[0] for ours, theirs in zip(outputs, model.expected, strict=True)]
    assert sum(first_tokens) >= 40


def test_a_request_larger_than_the_pool_fails_and_the_others_finish(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    engine = make_engine(model, num_kv_blocks=4)
    engine.add(0, [5] * 60, params=SamplingParams(temperature=0.0, max_tokens=30))
    engine.add(1, model.prompts[0][:8], params=SamplingParams(temperature=0.0, max_tokens=4))
    deltas = [delta for _ in range(10) for delta in engine.step()]
    assert [delta.finish_reason for delta in deltas if delta.request_id == 0] == [FinishReason.ERROR]
    assert "pool holds 64" in str(deltas[0].error)
    assert sum(len(delta.token_ids) for delta in deltas if delta.request_id == 1) == 4


@pytest.mark.parametrize(
    ("length", "max_tokens", "reason", "count"),
    [
        (10, 0, FinishReason.LENGTH, 0),
        (10, 1, FinishReason.LENGTH, 1),
        (254, 5, FinishReason.LENGTH, 2),
        (255, 5, FinishReason.LENGTH, 1),
        (256, 5, FinishReason.ERROR, 0),
        (257, 5, FinishReason.ERROR, 0),
        (0, 5, FinishReason.ERROR, 0),
    ],
)
def test_finish_reasons_at_the_limits(
    *, length: int, max_tokens: int, reason: FinishReason, count: int, tiny_models: TinyModels
) -> None:
    engine = make_engine(tiny_models["llama-gqa"])
    engine.add(0, [7] * length, params=SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True))
    deltas = [delta for _ in range(20) if engine.has_work for delta in engine.step()]
    assert sum(len(delta.token_ids) for delta in deltas) == count
    assert deltas[-1].finish_reason is reason


def test_a_stop_token_as_the_last_allowed_one_is_a_stop(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    index = max(range(50), key=lambda place: len(model.expected[place]))
    token = model.expected[index][2]
    first = model.expected[index].index(token)
    engine = make_engine(model)
    params = SamplingParams(temperature=0.0, max_tokens=first + 1, stop_token_ids=[token])
    engine.add(0, model.prompts[index], params=params)
    deltas = [delta for _ in range(20) if engine.has_work for delta in engine.step()]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, token)


def test_min_tokens_holds_back_stop_tokens(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    stops = list(range(128))
    engine = make_engine(model)
    params = SamplingParams(temperature=0.0, max_tokens=20, min_tokens=6, stop_token_ids=stops)
    for index, prompt in enumerate(model.prompts):
        engine.add(index, prompt, params=params)
    tokens: dict[int, list[int]] = {}
    while engine.has_work:
        for delta in engine.step():
            tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
    assert all(token >= 128 for output in tokens.values() for token in output[:6])
    assert any(len(output) == 7 for output in tokens.values())


def test_an_abort_during_a_run_gives_no_late_token_and_leaks_nothing(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    engine = make_engine(model)
    for index in range(6):
        engine.add(index, model.prompts[index], params=SamplingParams(n=2, max_tokens=20, ignore_eos=True))
    for _ in range(4):
        engine.step()
    engine.abort([0, 3, 99])
    deltas = engine.step()
    ended = [delta for delta in deltas if delta.request_id in (0, 3)]
    assert [delta.finish_reason for delta in ended] == [FinishReason.ABORT] * 4
    assert not any(delta.token_ids for delta in ended)
    while engine.has_work:
        assert not {delta.request_id for delta in engine.step()} & {0, 3}
    engine.scheduler.check_integrity()
    assert engine.stats().load.num_used_blocks == 0
