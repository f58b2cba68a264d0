from __future__ import annotations

import random
from typing import Any

import pytest

from benchmarks.static_batching import Batching, StaticScheduler, batching_of, load_engine
from engine.config import EngineConfig, Speculation
from engine.loop.core import Engine
from engine.outputs import TokenDelta
from engine.params import SamplingParams
from tests.engine.builders import new_request, runner_of
from tests.engine.simulated_engine import SimulatedEngine, expected_output
from tests.engine.tiny_models import TinyModel, TinyModels


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return TinyModels(tmp_path_factory.mktemp("models"))["qwen2-window-yarn"]


def engine_of(model: TinyModel, batching: Batching = Batching.STATIC, **settings: Any) -> Engine:
    given = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "num_kv_blocks": 400, **settings}
    config = EngineConfig(model=str(model.path), dtype="float32", device="cpu", warm_up=False, **given)
    return load_engine(config, batching)


def run(engine: Engine) -> dict[tuple[int, int], list[TokenDelta]]:
    deltas: dict[tuple[int, int], list[TokenDelta]] = {}
    while engine.has_work:
        for delta in engine.step():
            assert delta.error is None
            deltas.setdefault((delta.request_id, delta.index), []).append(delta)
        engine.scheduler.check_integrity()
    assert engine.scheduler.pool.num_used == 0
    return deltas


def tokens(deltas: dict[tuple[int, int], list[TokenDelta]]) -> list[list[int]]:
    return [[token for delta in deltas[child] for token in delta.token_ids] for child in sorted(deltas)]


def run_greedily(engine: Engine, model: TinyModel) -> list[list[int]]:
    for number, (prompt, max_tokens) in enumerate(zip(model.prompts, model.max_tokens, strict=True)):
        engine.add(new_request(number, prompt, params=SamplingParams(temperature=0.0, max_tokens=max_tokens)))
    return tokens(run(engine))


# --- whose turn it is ------------------------------------------------------------------------------------------------


def test_a_batch_waits_for_its_longest() -> None:
    engine = SimulatedEngine(scheduler_type=StaticScheduler, max_num_seqs=2)
    engine.add([1] * 4, 2)
    engine.add([2] * 4, 10)
    third = engine.add([3] * 4, 2)
    for _ in range(10):
        plan_ids = [sequence.request.request_id for sequence, _ in engine.step()]
        assert len(plan_ids) == 2, "the row of the shorter one is not computed on"
        assert third not in plan_ids
    assert [sequence.request.request_id for sequence, _ in engine.step()] == [third]


def test_a_batch_is_full_even_when_its_prompts_take_several_steps() -> None:
    engine = SimulatedEngine(scheduler_type=StaticScheduler, max_num_seqs=4, max_num_batched_tokens=8)
    ids = [engine.add([index] * 7, 3) for index in range(5)]
    engine.step()
    assert [sequence.request.request_id for sequence in engine.scheduler.running_sequences()] == ids[:4]
    engine.run()
    assert len(engine.finished) == 5


def test_rows_that_are_only_computed_on_do_not_count() -> None:
    engine = SimulatedEngine(scheduler_type=StaticScheduler, enable_prefix_caching=False)
    engine.add([1] * 4, 2)
    engine.add([2] * 4, 10)
    engine.run()
    counters = engine.scheduler.counters
    assert (counters.num_steps, counters.num_seqs, counters.num_computed_tokens) == (10, 12, 4 + 1 + 4 + 9)


def test_a_batch_takes_no_drafts() -> None:
    engine = SimulatedEngine(scheduler_type=StaticScheduler)
    engine.add([1] * 4, 9)
    engine.step()
    for sequence in engine.scheduler.running_sequences():
        sequence.draft_token_ids = [1, 2, 3]
    assert [count for _, count in engine.step()] == [1]


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("budget", [8, 13, 512])
def test_every_request_gets_its_own_tokens(*, caching: bool, budget: int) -> None:
    engine = SimulatedEngine(
        scheduler_type=StaticScheduler, max_num_batched_tokens=budget, enable_prefix_caching=caching
    )
    rng = random.Random(0)
    work = [([rng.randrange(97) for _ in range(rng.randint(1, 40))], rng.randint(1, 30)) for _ in range(30)]
    ids = [engine.add(prompt, max_tokens) for prompt, max_tokens in work]
    engine.run()
    for request_id, (prompt, max_tokens) in zip(ids, work, strict=True):
        (sequence,) = engine.finished[request_id]
        assert sequence.token_ids[len(prompt) :] == expected_output(prompt, max_tokens)


@pytest.mark.parametrize("seed", range(6))
def test_no_block_is_lost_or_freed_twice_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    engine = SimulatedEngine(scheduler_type=StaticScheduler, num_blocks=25, max_num_seqs=6)
    scheduler = engine.scheduler
    for number in range(400):
        running = [sequence for sequence in scheduler.running_sequences() if sequence.has_prompt_computed]
        action = rng.choice(["add", "step", "step", "step", "abort", "finish"])
        if action == "add":
            engine.add([rng.randrange(3) for _ in range(rng.randint(1, 24))], rng.randint(1, 20), n=rng.randint(1, 3))
        elif action == "step" and scheduler.has_work:
            engine.step()
        elif action == "abort":
            scheduler.abort(rng.randrange(number + 1))
        elif action == "finish" and running:
            scheduler.finish(rng.choice(running))
        scheduler.check_integrity()
    engine.run()
    assert scheduler.counters.num_preemptions == 0
    assert scheduler.pool.num_used == 0
    assert scheduler.pool.num_available == scheduler.pool.capacity


# --- the same engine -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [16, 512])
def test_the_tokens_are_those_of_continuous_batches(budget: int, model: TinyModel) -> None:
    assert run_greedily(engine_of(model, max_num_batched_tokens=budget), model) == model.expected


def test_what_a_batch_leaves_in_the_prefix_cache_is_right(model: TinyModel) -> None:
    engine = engine_of(model, block_size=4, num_kv_blocks=1600)
    runner_of(engine).fill_cache(float("nan"))
    for _ in range(2):
        before = engine.stats().cache.num_cached_tokens
        assert run_greedily(engine, model) == model.expected
    assert engine.stats().cache.num_cached_tokens > before + 500


def test_penalties_scores_and_siblings_get_the_same_tokens(model: TinyModel) -> None:
    extras: list[dict[str, Any]] = [{"frequency_penalty": 0.5}, {"logprobs": 2}, {"prompt_logprobs": 1}, {}]
    asked = [
        SamplingParams(seed=index, max_tokens=9 + index, n=1 + index % 3, min_tokens=3, **extra)
        for index, extra in enumerate(extras)
    ]
    found = []
    for batching in Batching:
        engine = engine_of(model, batching)
        assert batching_of(engine) is batching
        for number, params in enumerate(asked):
            engine.add(new_request(number, model.prompts[number], params=params))
        found.append(run(engine))
    assert tokens(found[1]) == tokens(found[0])
    for scored in (deltas[2, 0][0].prompt_logprobs for deltas in found):
        assert scored is not None
        assert len(scored) == len(model.prompts[2]) - 1


def test_speculation_is_left_out(model: TinyModel) -> None:
    engine = engine_of(model, speculation=Speculation.NGRAM)
    engine.add(new_request(0, [7, 8] * 9, params=SamplingParams(temperature=0.0, allowed_token_ids=[7], max_tokens=20)))
    run(engine)
    assert engine.stats().speculation.num_drafted == 0
