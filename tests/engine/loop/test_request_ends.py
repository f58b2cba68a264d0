"""Tests of requests' ends: at a limit, by a token, by an abort or because they can never run; nothing follows."""

from __future__ import annotations

import pytest

from engine.errors import InvalidRequestError
from engine.outputs import FinishReason
from engine.params import SamplingParams
from engine.structured import StructuredOutput
from tests.engine.builders import deltas_of, greedy, make_engine, new_request, outputs_of, tokens_of
from tests.engine.tiny_models import TinyModel, TinyModels


@pytest.fixture
def model(tiny_models: TinyModels) -> TinyModel:
    return tiny_models["llama-gqa"]


def seeded(seed: int) -> SamplingParams:
    return SamplingParams(seed=seed, max_tokens=20, n=2, ignore_eos=True)


def test_a_request_larger_than_the_pool_fails_and_the_others_finish(model: TinyModel) -> None:
    engine = make_engine(model, num_kv_blocks=4)
    engine.add(new_request(0, [5] * 60, params=greedy(30)))
    engine.add(new_request(1, [5] * 60, params=greedy(5)))
    deltas = deltas_of(engine)
    assert [delta.finish_reason for delta in deltas[0, 0]] == [FinishReason.ERROR]
    assert "pool holds 64" in str(deltas[0, 0][0].error)
    assert len(tokens_of(deltas[1, 0])) == 5


@pytest.mark.parametrize("context", [64, 256])
@pytest.mark.parametrize(
    ("free", "max_tokens", "reason", "count"),
    [
        (50, 0, FinishReason.LENGTH, 0),
        (50, 1, FinishReason.LENGTH, 1),
        (2, 5, FinishReason.LENGTH, 2),
        (1, 5, FinishReason.LENGTH, 1),
        (0, 5, FinishReason.ERROR, 0),
        (-1, 5, FinishReason.ERROR, 0),
    ],
)
def test_a_request_ends_at_its_own_limit_or_where_the_context_is_full(
    *, free: int, max_tokens: int, reason: FinishReason, count: int, context: int, model: TinyModel
) -> None:
    engine = make_engine(model, max_model_len=context)
    engine.add(new_request(0, [7] * (context - free), params=greedy(max_tokens)))
    deltas = deltas_of(engine)[0, 0]
    assert (deltas[-1].finish_reason, len(tokens_of(deltas))) == (reason, count)


def test_a_prompt_without_tokens_is_an_error(model: TinyModel) -> None:
    engine = make_engine(model)
    engine.add(new_request(0, [], params=greedy(5)))
    (delta,) = deltas_of(engine)[0, 0]
    assert (delta.finish_reason, delta.token_ids) == (FinishReason.ERROR, [])


@pytest.mark.parametrize("structured", [None, StructuredOutput(regex="a+")])
def test_the_id_of_a_request_that_runs_is_refused_and_costs_that_one_nothing(
    structured: StructuredOutput | None, model: TinyModel
) -> None:
    engine = make_engine(model)
    params = greedy(5, ignore_eos=structured is None, structured=structured)
    engine.add(new_request(7, [5, 6], params=params))
    with pytest.raises(InvalidRequestError, match="request_id is 7"):
        engine.add(new_request(7, [6, 7], params=params))
    deltas = deltas_of(engine)[7, 0]
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [
        FinishReason.LENGTH if structured is None else FinishReason.ERROR  # it has no tokenizer
    ]
    engine.add(new_request(7, [6, 7], params=greedy(1)))
    assert len(tokens_of(deltas_of(engine)[7, 0])) == 1


def test_a_stop_token_as_the_last_allowed_one_is_a_stop(model: TinyModel) -> None:
    index = max(range(50), key=lambda prompt: len(model.expected[prompt]))
    token = model.expected[index][2]
    first = model.expected[index].index(token)
    engine = make_engine(model)
    params = SamplingParams(temperature=0.0, max_tokens=first + 1, stop_token_ids=[token])
    engine.add(new_request(0, model.prompts[index], params=params))
    deltas = deltas_of(engine)[0, 0]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, token)


@pytest.mark.parametrize(("max_tokens", "reason"), [(4, FinishReason.LENGTH), (5, FinishReason.STOP)])
def test_eos_as_the_last_allowed_token_is_a_stop_too(max_tokens: int, reason: FinishReason, model: TinyModel) -> None:
    engine = make_engine(model)
    params = greedy(max_tokens, min_tokens=4, logit_bias={2: 100.0}, ignore_eos=False)
    engine.add(new_request(0, model.prompts[0], params=params))
    deltas = deltas_of(engine)[0, 0]
    assert (deltas[-1].finish_reason, len(tokens_of(deltas))) == (reason, max_tokens)
    assert (tokens_of(deltas)[-1] == 2) == (reason is FinishReason.STOP)


def test_min_tokens_holds_back_stop_tokens(model: TinyModel) -> None:
    stops = list(range(128))
    engine = make_engine(model)
    params = SamplingParams(temperature=0.0, max_tokens=20, min_tokens=6, stop_token_ids=stops)
    for index, prompt in enumerate(model.prompts):
        engine.add(new_request(index, prompt, params=params))
    tokens: dict[int, list[int]] = {}
    while engine.has_work:
        for delta in engine.step():
            tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
    assert all(token >= 128 for output in tokens.values() for token in output[:6])
    assert any(len(output) == 7 for output in tokens.values())


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("num_steps", [0, 1, 3, 12])
def test_an_abort_at_any_step_gives_no_late_token_and_changes_no_other(
    num_steps: int, model: TinyModel, *, overlap: bool
) -> None:
    engine = make_engine(model, max_num_batched_tokens=16, num_kv_blocks=12, admission="prompt", overlap=overlap)
    for request_id in range(8):
        engine.add(new_request(request_id, model.prompts[request_id], params=seeded(request_id)))
    early = [delta for _ in range(num_steps) for delta in (*engine.step(), *engine.release())]
    unfinished = {(0, index) for index in (0, 1)} - {
        (delta.request_id, delta.index) for delta in early if delta.finish_reason
    }
    engine.abort([0, 99])
    deltas = deltas_of(engine)
    assert {child for child in deltas if child[0] == 0} == unfinished
    for child in unfinished:
        assert [(delta.token_ids, delta.finish_reason) for delta in deltas[child]] == [([], FinishReason.ABORT)]
    before = {child: [delta for delta in early if (delta.request_id, delta.index) == child] for child in deltas}
    others = make_engine(model)
    for request_id in range(1, 8):
        others.add(new_request(request_id, model.prompts[request_id], params=seeded(request_id)))
    expected = outputs_of(others)
    assert {child: tokens_of(before[child] + deltas[child]) for child in expected} == expected
