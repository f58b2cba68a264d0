"""Sampling through the whole engine: what a request's tokens may depend on."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch

from engine.errors import InvalidParamsError
from engine.loop import intake
from engine.loop.core import Engine
from engine.outputs import FinishReason, TokenDelta, TokenLogprobs
from engine.params import SamplingParams
from engine.speculation.lookup_drafter import LookupDrafter
from tests.engine.builders import (
    FreeRows,
    deltas_of,
    greedy,
    make_engine,
    new_request,
    no_guess,
    outputs_of,
    run_with_drafts,
    tokens_of,
)
from tests.engine.tiny_models import TinyModels

pytestmark = pytest.mark.comparison

FILTERS: list[dict[str, Any]] = [{}, {"top_k": 20}, {"top_p": 0.8}, {"min_p": 0.05}]
EDITS: list[dict[str, Any]] = [
    {"frequency_penalty": 1.5, "presence_penalty": 0.5},
    {"repetition_penalty": 1.6, "top_p": 0.9},
    {"allowed_token_ids": list(range(3, 40)), "bad_words_token_ids": [[5], [7, 8]], "frequency_penalty": -0.5},
    {"logit_bias": {9: 4.0, 10: -100.0}, "repetition_penalty": 1.2, "temperature": 0.0},
]
"""What requests may change in their logits; each makes a token depend on those before it."""


def seeded(**extra: Any) -> SamplingParams:
    return SamplingParams(**{"seed": 5, "max_tokens": 15, "ignore_eos": True, **extra})


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("filters", FILTERS + EDITS)
def test_a_seed_gives_the_same_tokens_alone_and_in_any_batch(
    filters: dict[str, Any], tiny_models: TinyModels, *, overlap: bool
) -> None:
    model = tiny_models["llama-gqa"]
    alone = make_engine(model)
    alone.add(new_request(0, model.prompts[0], params=seeded(**filters)))
    expected = outputs_of(alone)[0, 0]
    crowd = make_engine(model, max_num_batched_tokens=16, overlap=overlap)
    for index, prompt in enumerate(model.prompts[:20]):
        edits = EDITS[index % len(EDITS)] if index % 2 else {}
        crowd.add(new_request(100 + index, prompt, params=SamplingParams(**{"max_tokens": 9, "top_k": index, **edits})))
    crowd.add(new_request(0, model.prompts[0], params=seeded(**filters)))
    assert outputs_of(crowd)[0, 0] == expected


@pytest.mark.parametrize("overlap", [False, True])
def test_a_seed_gives_the_same_tokens_after_preemption(tiny_models: TinyModels, *, overlap: bool) -> None:
    model = tiny_models["llama-gqa"]
    ample, tiny = make_engine(model), make_engine(model, num_kv_blocks=10, admission="prompt", overlap=overlap)
    edits = [{}, *EDITS]
    for engine in (ample, tiny):
        for index, prompt in enumerate(model.prompts[:20]):
            engine.add(new_request(index, prompt, params=seeded(**{"seed": index, **edits[index % len(edits)]})))
    assert outputs_of(ample) == outputs_of(tiny)
    assert tiny.stats().scheduler.num_preemptions > 0


@pytest.mark.parametrize("edits", EDITS)
def test_edits_look_back_on_the_drafts_before_them(edits: dict[str, Any], tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    params = seeded(**{"max_tokens": 30, **edits})
    plain, plain_steps = run_with_drafts(model, params, no_guess)
    whole = [*model.prompts[0], *plain]

    def partly_right(known: list[int], left: int) -> list[int]:
        right = whole[len(known) : len(known) + 1 + len(known) % 3]
        return [*right, 7, 7, 8]

    tokens, steps = run_with_drafts(model, params, partly_right)
    assert tokens == plain
    assert steps < plain_steps


def test_a_request_is_penalised_for_what_it_has_said(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    engine = make_engine(model)
    engine.add(
        new_request(0, model.prompts[0], params=seeded(temperature=0.0, max_tokens=40, allowed_token_ids=[3, 4, 5, 6]))
    )
    few = {"allowed_token_ids": [3, 4, 5, 6], "frequency_penalty": 2.0, "max_tokens": 40}
    engine.add(new_request(1, model.prompts[0], params=seeded(temperature=0.0, **few)))
    tokens = outputs_of(engine)
    free, penalised = (Counter(tokens[request_id, 0]) for request_id in (0, 1))
    assert max(free.values()) > max(penalised.values())


@pytest.mark.parametrize(("speculation", "overlap"), [("off", False), ("off", True), ("ngram", False)])
def test_penalties_count_every_token_up_to_the_one_before(
    speculation: str, tiny_models: TinyModels, *, overlap: bool
) -> None:
    from transformers import AutoModelForCausalLM

    model = tiny_models["llama-gqa"]
    allowed, prompt = [7, 8, 9, 10], [7, 8, 9, 8, 7, 9, 9, 8, 7, 8] * 3
    params = greedy(24, allowed_token_ids=allowed, frequency_penalty=1.5, presence_penalty=2.0)
    engine = make_engine(model, speculation=speculation, overlap=overlap)
    if engine.loop.drafter is not None:
        engine.loop.drafter = LookupDrafter(max_drafts=8, min_match=1, max_match=8, clock=FreeRows())
    engine.add(new_request(0, prompt, params=params))
    found = outputs_of(engine)[0, 0]
    assert (engine.stats().speculation.num_drafted > 0) == (speculation == "ngram")
    oracle = AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float32).eval()
    for index in range(24):  # every token counts those up to the one just before it
        counts = Counter(found[:index])
        with torch.inference_mode():
            logits = oracle(torch.tensor([prompt + found[:index]])).logits[0, -1].tolist()
        edited = {token: logits[token] - 1.5 * counts[token] - 2.0 * (counts[token] > 0) for token in allowed}
        assert found[index] == max(edited, key=lambda token: edited[token])


def test_a_bad_word_is_never_said_and_an_allowed_token_always(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    engine = make_engine(model)
    params = {"allowed_token_ids": [3, 4, 5], "max_tokens": 60, "temperature": 5.0}
    engine.add(new_request(0, model.prompts[0], params=seeded(bad_words_token_ids=[[3, 4], [4, 5, 5]], **params)))
    engine.add(new_request(1, model.prompts[0], params=seeded(**params)))
    tokens = outputs_of(engine)
    pairs = set(pairwise(tokens[0, 0]))
    assert pairs == {(3, 3), (3, 5), (4, 3), (4, 4), (4, 5), (5, 3), (5, 4), (5, 5)}
    triples = [tokens[0, 0][index : index + 3] for index in range(58)]
    assert [4, 5, 5] not in triples
    assert (3, 4) in set(pairwise(tokens[1, 0]))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_end_before_min_tokens_and_the_very_next_may_be_one(temperature: float, tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    ends = list(range(3, 250))
    engine = make_engine(model)
    for request_id, min_tokens in enumerate((0, 1, 6, 12)):
        params = SamplingParams(
            temperature=temperature, seed=1, stop_token_ids=ends, min_tokens=min_tokens, max_tokens=12
        )
        engine.add(new_request(request_id, model.prompts[1], params=params))
    tokens = outputs_of(engine)
    for request_id, min_tokens in enumerate((0, 1, 6, 12)):
        own = tokens[request_id, 0]
        assert not {2, *ends} & set(own[:min_tokens])
        assert len(own) == min(min_tokens + 1, 12)


def test_eos_and_a_stop_token_end_a_request_right_after_min_tokens(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    engine, prompt = make_engine(model), model.prompts[0]
    eos, stop = 2, 9
    ends: list[dict[str, Any]] = [
        {"logit_bias": {eos: 100.0}, "ignore_eos": False},
        {"logit_bias": {stop: 100.0}, "stop_token_ids": [stop]},
    ]
    for request_id, end in enumerate(ends):
        engine.add(new_request(request_id, prompt, params=greedy(20, min_tokens=5, **end)))
    found = deltas_of(engine)
    for request_id, end_token in enumerate((eos, stop)):
        own = tokens_of(found[request_id, 0])
        assert (own.index(end_token), len(own)) == (5, 6)
        assert found[request_id, 0][-1].finish_reason is FinishReason.STOP


def test_a_request_whose_every_token_is_forbidden_is_refused(tiny_models: TinyModels) -> None:
    engine = make_engine(tiny_models["llama-gqa"])
    engine.add(new_request(0, [5], params=SamplingParams(allowed_token_ids=[2], min_tokens=1)))
    engine.add(new_request(1, [5], params=SamplingParams(bad_words=["x"])))
    engine.add(new_request(2, [5], params=SamplingParams(logit_bias={256: 1.0})))
    engine.add(new_request(3, [5], params=SamplingParams(bad_words_token_ids=[[token] for token in range(256)])))
    errors = [delta.error or "" for delta in engine.step()]
    parts = ("min_tokens", "bad_words", "256", "bad word")
    assert [part in error for part, error in zip(parts, errors, strict=True)] == [True] * 4
    with pytest.raises(InvalidParamsError, match="no token but those that end bad words"):
        SamplingParams(allowed_token_ids=[5], bad_words_token_ids=[[5, 5]])


@pytest.mark.parametrize("extra", [{"temperature": 0.0}, {"temperature": 0.0, "logprobs": 2}, {"seed": 3}])
def test_a_row_with_no_token_left_ends_with_the_reason_and_alone(
    extra: dict[str, Any], tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both refuse such a request before it runs; here is what holds where they overlook one.
    monkeypatch.setattr(SamplingParams, "_check_choice_of_tokens", lambda params: None)
    monkeypatch.setattr(intake, "_check_any_token_left", lambda params, info: None)
    model = tiny_models["llama-gqa"]
    others = [seeded(), seeded(temperature=0.0, logprobs=1), seeded(**EDITS[2])]
    runs = []
    for is_joined in (False, True):
        engine = make_engine(model)
        for index, params in enumerate(others):
            engine.add(new_request(index, model.prompts[index], params=params))
        if is_joined:
            forbidden: dict[str, Any] = {"allowed_token_ids": [5], "bad_words_token_ids": [[5, 5]], "max_tokens": 15}
            engine.add(new_request(9, model.prompts[9], params=SamplingParams(**forbidden, **extra)))
        runs.append(deltas_of(engine))
    alone, joined = runs
    stuck = joined.pop((9, 0))
    assert [token for delta in stuck for token in delta.token_ids] == [5]
    assert [delta.finish_reason for delta in stuck if delta.finish_reason] == [FinishReason.ERROR]
    assert (stuck[-1].error or "").startswith("No token is left after 1 token;")
    counts = [len(entry.top_token_ids) for delta in stuck for entry in delta.logprobs or []]
    assert counts == ([2] if "logprobs" in extra else [])
    assert [deltas[-1].finish_reason for deltas in joined.values()] == [FinishReason.LENGTH] * 3
    assert {child: tokens_of(own) for child, own in joined.items()} == {
        child: tokens_of(own) for child, own in alone.items()
    }


@pytest.mark.parametrize("edits", [*FILTERS[:2], *EDITS])
def test_a_run_that_goes_on_after_a_restart_takes_the_same_tokens(
    edits: dict[str, Any], tiny_models: TinyModels
) -> None:
    model = tiny_models["llama-gqa"]
    whole, rest = make_engine(model), make_engine(model)
    whole.add(new_request(0, model.prompts[0], params=seeded(**edits)))
    tokens = outputs_of(whole)[0, 0]
    rest.add(new_request(7, model.prompts[0], params=seeded(**edits), output_token_ids=tokens[:6]))
    assert outputs_of(rest)[7, 0] == tokens[6:]


def test_child_i_of_n_uses_seed_plus_i(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    engine = make_engine(model)
    engine.add(new_request(0, model.prompts[0], params=seeded(n=4)))
    for index in range(4):
        engine.add(new_request(1 + index, model.prompts[0], params=seeded(seed=5 + index)))
    tokens = outputs_of(engine)
    assert [tokens[0, index] for index in range(4)] == [tokens[1 + index, 0] for index in range(4)]
    assert len({tuple(tokens[0, index]) for index in range(4)}) == 4


def test_requests_without_a_seed_differ_and_repeat_with_the_engine_seed(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    runs = []
    for engine_seed in (0, 0, 1):
        engine = make_engine(model, seed=engine_seed)
        for index in range(3):
            engine.add(new_request(index, model.prompts[0], params=seeded(seed=None)))
        runs.append(outputs_of(engine))
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
    engine.add(new_request(0, model.prompts[0], params=greedy))
    decoded = logprobs_of(engine, 0)
    assert [entry.rank for entry in decoded] == [1] * 8
    grown = list(model.prompts[0])
    for index, entry in enumerate(decoded):
        engine.add(new_request(1 + index, grown, params=SamplingParams(temperature=0.0, max_tokens=1, logprobs=5)))
        (prefilled,) = logprobs_of(engine, 1 + index)
        assert prefilled.top_token_ids == entry.top_token_ids
        assert prefilled.top_logprobs == pytest.approx(entry.top_logprobs, abs=1e-3)
        grown.append(entry.top_token_ids[0])


def test_logprobs_survive_a_prefix_hit(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    engine = make_engine(model)
    prompt = model.prompts[49]
    greedy = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True, logprobs=3)
    engine.add(new_request(0, prompt, params=greedy))
    first = logprobs_of(engine, 0)
    engine.add(new_request(1, prompt, params=greedy))
    second = logprobs_of(engine, 1)
    assert [entry.top_token_ids for entry in first] == [entry.top_token_ids for entry in second]
