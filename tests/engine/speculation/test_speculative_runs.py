"""Tests that the engine gives the same output with speculation, for every kind of request, in fewer steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from engine.build import build_engine
from engine.config import EngineConfig
from engine.errors import InvalidConfigError
from engine.outputs import TokenLogprobs
from engine.params import SamplingParams
from engine.speculation.lookup_drafter import LookupDrafter
from engine.stats import EngineStats
from tests.engine.builders import FreeRows, new_request
from tests.engine.tiny_models import VARIANTS, TinyModel, TinyModels

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
RANDOM = SamplingParams(seed=5, temperature=50.0, max_tokens=40, ignore_eos=True, allowed_token_ids=[7, 8, 9])
"""One of three tokens about equally likely, so that a third of all drafts is right by chance."""

REPETITIVE = [7, 8, 9, 8, 7, 9, 9, 8, 7, 8] * 4


@dataclass
class Output:
    """What one child of a request got."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | None = None


_Outputs = dict[tuple[int, int], Output]


def run(
    model: TinyModel, requests: list[tuple[list[int], SamplingParams]], *, speculation: str, **settings: Any
) -> tuple[_Outputs, EngineStats]:
    settings = {"num_kv_blocks": 128, "max_num_batched_tokens": 256, "speculation": speculation, **settings}
    config = EngineConfig(model=str(model.path), dtype="float32", device="cpu", warm_up=False, **settings)
    engine = build_engine(config)
    if engine.loop.drafter is not None:
        engine.loop.drafter = LookupDrafter(
            max_drafts=config.num_speculative_tokens, min_match=1, max_match=8, clock=FreeRows()
        )
    for request_id, (prompt, params) in enumerate(requests):
        engine.add(new_request(request_id, prompt, params=params))
    outputs: _Outputs = {}
    while engine.has_work:
        for delta in engine.step():
            output = outputs.setdefault((delta.request_id, delta.index), Output())
            output.token_ids += delta.token_ids
            output.logprobs += delta.logprobs or []
            output.finish_reason, output.stop_reason = delta.finish_reason, delta.stop_reason
        engine.scheduler.check_integrity()
    assert engine.scheduler.pool.num_used == 0
    return outputs, engine.stats()


def run_both(
    model: TinyModel, requests: list[tuple[list[int], SamplingParams]], **settings: Any
) -> tuple[_Outputs, _Outputs, EngineStats]:
    """Return the outputs without and with speculation, and the latter's statistics; drafts were right and wrong."""
    plain, _ = run(model, requests, speculation="off", **settings)
    guessed, stats = run(model, requests, speculation="ngram", **settings)
    assert 0 < stats.speculation.num_accepted < stats.speculation.num_drafted
    return plain, guessed, stats


def prompts(count: int = 6) -> list[list[int]]:
    return [[*REPETITIVE[index:], 20 + index, *REPETITIVE[: 3 * index + 1]] for index in range(count)]


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("params", [GREEDY, RANDOM], ids=["greedy", "sampled"])
def test_every_model_gives_the_same_tokens_with_drafts(
    name: str, params: SamplingParams, tiny_models: TinyModels
) -> None:
    requests = [(prompt, params) for prompt in prompts()]
    plain, _ = run(tiny_models[name], requests, speculation="off")
    guessed, stats = run(tiny_models[name], requests, speculation="ngram")
    assert guessed == plain
    assert stats.speculation.num_drafted > 0


def test_right_drafts_save_steps(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    requests = [(prompt, replace(GREEDY, allowed_token_ids=[7, 8])) for prompt in prompts()]
    _, plain = run(model, requests, speculation="off")
    _, guessed = run(model, requests, speculation="ngram")
    assert guessed.scheduler.num_steps < plain.scheduler.num_steps
    assert guessed.requests.num_output_tokens == plain.requests.num_output_tokens
    assert guessed.speculation.acceptance_rate > 0


@pytest.mark.parametrize("has_cache", [True, False])
@pytest.mark.parametrize("admission", ["peak", "prompt"])
def test_preemption_changes_no_token(has_cache: bool, admission: str, tiny_models: TinyModels) -> None:
    requests = [(prompt, replace(RANDOM, seed=index)) for index, prompt in enumerate(prompts(8))]
    model = tiny_models["mistral-window"]
    ample, _ = run(model, requests, speculation="off")
    tight = {"num_kv_blocks": 24, "block_size": 8, "enable_prefix_caching": has_cache, "admission": admission}
    guessed, stats = run(model, requests, speculation="ngram", **tight)
    assert guessed == ample
    assert stats.speculation.num_drafted > 0
    if admission == "prompt":
        assert stats.scheduler.num_preemptions > 0


@pytest.mark.parametrize("has_cache", [True, False])
def test_a_second_run_over_cached_prefixes_changes_no_token(has_cache: bool, tiny_models: TinyModels) -> None:
    requests = [(prompt, RANDOM) for prompt in prompts(4)] * 2
    plain, guessed, stats = run_both(
        tiny_models["qwen3"], requests, max_num_seqs=2, block_size=4, enable_prefix_caching=has_cache
    )
    assert guessed == plain
    assert (stats.cache.num_cached_tokens > 0) == has_cache


def test_a_stop_token_inside_the_drafts_ends_the_output_there(tiny_models: TinyModels) -> None:
    # By the tenth token drafts are under way, and a third of them are stop tokens.
    params = [replace(RANDOM, seed=seed, stop_token_ids=[9], min_tokens=10) for seed in range(12)]
    plain, guessed, _ = run_both(tiny_models["llama-gqa"], [(REPETITIVE, one) for one in params])
    assert guessed == plain
    assert {(output.finish_reason, output.stop_reason) for output in guessed.values()} == {("stop", 9)}


def test_min_tokens_holds_inside_the_drafts(tiny_models: TinyModels) -> None:
    params = [replace(RANDOM, seed=seed, stop_token_ids=[9], min_tokens=17) for seed in range(8)]
    plain, guessed, _ = run_both(tiny_models["llama-gqa"], [(REPETITIVE, one) for one in params])
    assert guessed == plain
    assert min(len(output.token_ids) for output in guessed.values()) > 17


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 10, 11, 25])
def test_max_tokens_is_kept_to_the_token(max_tokens: int, tiny_models: TinyModels) -> None:
    requests = [(prompt, replace(RANDOM, seed=seed, max_tokens=max_tokens)) for seed, prompt in enumerate(prompts())]
    model = tiny_models["qwen2"]
    plain, _ = run(model, requests, speculation="off")
    guessed, _ = run(model, requests, speculation="ngram")
    assert guessed == plain
    assert {(len(output.token_ids), output.finish_reason) for output in guessed.values()} == {(max_tokens, "length")}


@pytest.mark.parametrize("base", [GREEDY, RANDOM], ids=["greedy", "sampled"])
def test_every_token_has_the_log_probabilities_of_a_run_without_drafts(
    base: SamplingParams, tiny_models: TinyModels
) -> None:
    params = replace(base, logprobs=3, allowed_token_ids=[7, 8, 9])
    plain, guessed, _ = run_both(tiny_models["qwen3"], [(prompt, params) for prompt in prompts()])
    for key, output in guessed.items():
        assert output.token_ids == plain[key].token_ids
        assert len(output.logprobs) == len(output.token_ids)
        for one, other in zip(output.logprobs, plain[key].logprobs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert one.top_logprobs == pytest.approx(other.top_logprobs, abs=1e-4)
            assert (one.rank, one.top_token_ids) == (other.rank, other.top_token_ids)


def test_the_children_of_a_request_are_drafted_each_from_its_own_text(tiny_models: TinyModels) -> None:
    plain, guessed, _ = run_both(tiny_models["llama-tied-biased"], [(REPETITIVE, replace(RANDOM, n=5))])
    assert guessed == plain
    assert len({tuple(output.token_ids) for output in guessed.values()}) > 1


def test_penalties_count_the_drafts_before_each_token(tiny_models: TinyModels) -> None:
    params = replace(RANDOM, presence_penalty=0.5, frequency_penalty=0.3, repetition_penalty=1.2)
    plain, guessed, _ = run_both(tiny_models["llama-gqa"], [(prompt, params) for prompt in prompts()])
    assert guessed == plain


def test_an_aborted_request_leaves_the_others_and_the_pool_as_they_were(tiny_models: TinyModels) -> None:
    model = tiny_models["qwen3"]
    requests = [(prompt, replace(RANDOM, seed=seed)) for seed, prompt in enumerate(prompts())]
    plain, _ = run(model, requests, speculation="off")
    engine = build_engine(EngineConfig(model=str(model.path), dtype="float32", num_kv_blocks=128, warm_up=False))
    engine.loop.drafter = LookupDrafter(max_drafts=64, min_match=1, max_match=8, clock=FreeRows())
    for request_id, (prompt, params) in enumerate(requests):
        engine.add(new_request(request_id, prompt, params=params))
    tokens: dict[int, list[int]] = {request_id: [] for request_id in range(len(requests))}
    num_steps = 0
    while engine.has_work:
        num_steps += 1
        if num_steps == 12:
            engine.abort([0, 3])
        for delta in engine.step():
            tokens[delta.request_id] += delta.token_ids
        engine.scheduler.check_integrity()
    assert engine.scheduler.pool.num_used == 0
    for request_id, own in tokens.items():
        whole = plain[request_id, 0].token_ids
        assert own == (whole[: len(own)] if request_id in (0, 3) else whole)
    assert len(tokens[0]) < 40


def test_the_configured_most_drafts_are_kept_to(tiny_models: TinyModels) -> None:
    requests = [(REPETITIVE, replace(GREEDY, allowed_token_ids=[7]))]
    model = tiny_models["llama-gqa"]
    _, plain = run(model, requests, speculation="off")
    _, guessed = run(model, requests, speculation="ngram", num_speculative_tokens=1)
    assert plain.scheduler.num_steps / 2 <= guessed.scheduler.num_steps < plain.scheduler.num_steps


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({"speculation": "eagle"}, "off, ngram"),
        ({"num_speculative_tokens": 65}, "from 1 to 64"),
        ({"prompt_lookup_min": 5, "prompt_lookup_max": 4}, "from 1 to 4"),
        ({"prompt_lookup_max": 0}, "from 1 to 64"),
    ],
)
def test_a_setting_out_of_range_is_refused_with_what_is_allowed(settings: dict[str, Any], allowed: str) -> None:
    with pytest.raises(InvalidConfigError, match=allowed):
        EngineConfig(model="", **settings)
