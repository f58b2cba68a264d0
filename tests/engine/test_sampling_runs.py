"""Sampling through the whole engine: what a request's tokens may depend on."""

from __future__ import annotations

from typing import Any

import pytest

from engine.core import Engine
from engine.outputs import TokenDelta, TokenLogprobs
from engine.params import SamplingParams

from .conftest import TinyModels
from .test_model import make_engine

FILTERS: list[dict[str, Any]] = [{}, {"top_k": 20}, {"top_p": 0.8}, {"min_p": 0.05}]


def collect(engine: Engine) -> dict[tuple[int, int], list[int]]:
    tokens: dict[tuple[int, int], list[int]] = {}
    while engine.has_work:
        for delta in engine.step():
            tokens.setdefault((delta.request_id, delta.index), []).extend(delta.token_ids)
    return tokens


def seeded(**extra: Any) -> SamplingParams:
    return SamplingParams(**{"seed": 5, "max_tokens": 15, "ignore_eos": True, **extra})


@pytest.mark.parametrize("filters", FILTERS)
def test_a_seed_gives_the_same_tokens_alone_and_in_any_batch(filters: dict[str, Any], tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    alone = make_engine(model)
    alone.add(0, model.prompts[0], params=seeded(**filters))
    expected = collect(alone)[0, 0]
    crowd = make_engine(model, max_num_batched_tokens=16)
    for index, prompt in enumerate(model.prompts[:20]):
        crowd.add(100 + index, prompt, params=SamplingParams(max_tokens=9, top_k=index))
    crowd.add(0, model.prompts[0], params=seeded(**filters))
    assert collect(crowd)[0, 0] == expected


def test_a_seed_gives_the_same_tokens_after_preemption(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    ample, tiny = make_engine(model), make_engine(model, num_kv_blocks=10, admission="prompt")
    for engine in (ample, tiny):
        for index, prompt in enumerate(model.prompts[:20]):
            engine.add(index, prompt, params=seeded(seed=index))
    assert collect(ample) == collect(tiny)
    assert tiny.stats().num_preemptions_total > 0


def test_child_i_of_n_uses_seed_plus_i(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    engine = make_engine(model)
    engine.add(0, model.prompts[0], params=seeded(n=4))
    for index in range(4):
        engine.add(1 + index, model.prompts[0], params=seeded(seed=5 + index))
    tokens = collect(engine)
    assert [tokens[0, index] for index in range(4)] == [tokens[1 + index, 0] for index in range(4)]
    assert len({tuple(tokens[0, index]) for index in range(4)}) == 4


def test_requests_without_a_seed_differ_and_repeat_with_the_engine_seed(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    runs = []
    for engine_seed in (0, 0, 1):
        engine = make_engine(model, seed=engine_seed)
        for index in range(3):
            engine.add(index, model.prompts[0], params=seeded(seed=None))
        runs.append(collect(engine))
    assert runs[0] == runs[1] != runs[2]
    assert len({tuple(tokens) for tokens in runs[0].values()}) == 3


def logprobs_of(engine: Engine, request_id: int) -> list[TokenLogprobs]:
    found: list[TokenLogprobs] = []
    while engine.has_work:
        deltas: list[TokenDelta] = [delta for delta in engine.step() if delta.request_id == request_id]
        found += [entry for delta in deltas for entry in delta.logprobs or []]
    return found


def test_logprobs_of_a_decode_equal_those_of_a_prefill(tiny_models: TinyModels) -> None:
    model = tiny_models["qwen3"]
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=5)
    engine = make_engine(model)
    engine.add(0, model.prompts[0], params=greedy)
    decoded = logprobs_of(engine, 0)
    assert [entry.rank for entry in decoded] == [1] * 8
    grown = list(model.prompts[0])
    for index, entry in enumerate(decoded):
        engine.add(1 + index, grown, params=SamplingParams(temperature=0.0, max_tokens=1, logprobs=5))
        (prefilled,) = logprobs_of(engine, 1 + index)
        assert prefilled.top_token_ids == entry.top_token_ids
        assert prefilled.top_logprobs == pytest.approx(entry.top_logprobs, abs=1e-3)
        grown.append(entry.top_token_ids[0])


def test_logprobs_survive_a_prefix_hit(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    engine = make_engine(model)
    prompt = model.prompts[49]
    greedy = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True, logprobs=3)
    engine.add(0, prompt, params=greedy)
    first = logprobs_of(engine, 0)
    engine.add(1, prompt, params=greedy)
    second = logprobs_of(engine, 1)
    assert [entry.top_token_ids for entry in first] == [entry.top_token_ids for entry in second]
