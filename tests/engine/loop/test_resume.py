"""Tests of a request that continues after an earlier run's tokens, as a drained worker hands it to the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from engine.build import build_engine
from engine.config import EngineConfig
from engine.outputs import FinishReason, TokenDelta
from engine.params import SamplingParams
from tests.engine.builders import new_request
from tests.engine.tiny_models import TinyModel, TinyModels

pytestmark = pytest.mark.comparison

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
RANDOM = SamplingParams(seed=11, max_tokens=24, ignore_eos=True, top_p=0.9)


@pytest.fixture(scope="module")
def model(tiny_models: TinyModels) -> TinyModel:
    return tiny_models["qwen3"]


def run(
    model: TinyModel, params: SamplingParams, output: Sequence[int] = (), *, others: int = 0, **settings: Any
) -> list[TokenDelta]:
    """Run one request to its end in a fresh engine, beside some others, and return its deltas."""
    config = EngineConfig(model=str(model.path), dtype="float32", num_kv_blocks=200, warm_up=False, **settings)
    engine = build_engine(config)
    for index in range(others):
        engine.add(new_request(index + 1, model.prompts[index + 1], params=GREEDY))
    engine.add(new_request(0, model.prompts[0], params=params, output_token_ids=output))
    deltas = []
    while engine.has_work:
        deltas += [delta for delta in engine.step() if delta.request_id == 0]
        engine.scheduler.check_integrity()
    return deltas


def tokens_of(deltas: list[TokenDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


@pytest.mark.parametrize("params", [GREEDY, RANDOM])
@pytest.mark.parametrize("done", [1, 2, 16, 23])
def test_a_request_goes_on_with_the_tokens_it_would_have_had(
    done: int, params: SamplingParams, model: TinyModel
) -> None:
    whole = run(model, params)
    rest = run(model, params, tokens_of(whole)[:done], others=3)
    assert tokens_of(rest) == tokens_of(whole)[done:]
    assert rest[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("budget", [3, 16])
def test_prompt_logprobs_come_with_a_resumed_request_too(budget: int, model: TinyModel) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, prompt_logprobs=1)
    whole = run(model, params)
    rest = run(model, params, tokens_of(whole)[:20], max_num_batched_tokens=budget, max_num_seqs=1)
    assert tokens_of(rest) == tokens_of(whole)[20:]
    reported = [[delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs] for deltas in (whole, rest)]
    assert [[entry.top_token_ids for entry in logprobs] for (logprobs,) in reported[:1]] == [
        [entry.top_token_ids for entry in logprobs] for (logprobs,) in reported[1:]
    ]


def test_an_output_as_long_as_this_engine_allows_has_ended(model: TinyModel) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    (delta,) = run(model, params, [5] * 60, max_model_len=64)
    assert (delta.finish_reason, delta.token_ids) == (FinishReason.LENGTH, [])


@pytest.mark.parametrize(
    ("params", "output", "reason"),
    [
        (GREEDY, [5] * 24, "nothing is left"),
        (GREEDY, [256], "output_token_ids has 256"),
        (GREEDY, [5, -1], "output_token_ids has -1; ids run from 0 to 255"),
        (SamplingParams(n=2, max_tokens=24), [5], "n = 2"),
    ],
)
def test_an_output_that_cannot_go_on_is_refused(
    params: SamplingParams, output: list[int], reason: str, model: TinyModel
) -> None:
    delta = run(model, params, output)[0]
    assert delta.finish_reason is FinishReason.ERROR
    assert reason in str(delta.error)
