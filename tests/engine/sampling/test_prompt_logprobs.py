"""Log-probabilities of prompts: equal to transformers', whatever the pieces, hits and preemptions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine import LLM
from engine.outputs import FinishReason, TokenDelta, TokenLogprobs
from engine.params import SamplingParams
from tests.engine.builders import deltas_of, greedy, make_engine, new_request, tokens_of
from tests.engine.tiny_models import TinyModel, TinyModels

pytestmark = pytest.mark.comparison


def asking(count: int = 3, **extra: Any) -> SamplingParams:
    return SamplingParams(
        **{"temperature": 0.0, "max_tokens": 4, "ignore_eos": True, "prompt_logprobs": count, **extra}
    )


def scores(deltas: list[TokenDelta]) -> list[TokenLogprobs]:
    """Return the prompt's log-probabilities, which the first delta alone must hold."""
    assert deltas[0].prompt_logprobs is not None
    assert all(delta.prompt_logprobs is None for delta in deltas[1:])
    return deltas[0].prompt_logprobs


def assert_right(found: list[TokenLogprobs], model: TinyModel, prompt: list[int], count: int = 3) -> None:
    from transformers import AutoModelForCausalLM

    oracle = AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float32).eval()
    with torch.inference_mode():
        values = oracle(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
    own = values.gather(-1, torch.tensor(prompt[1:])[:, None])[:, 0]
    assert [entry.logprob for entry in found] == pytest.approx(own.tolist(), abs=1e-3)
    assert [entry.rank for entry in found] == ((values > own[:, None]).sum(-1) + 1).tolist()
    best = values.topk(count).values
    assert [entry.top_logprobs for entry in found] == [pytest.approx(row.tolist(), abs=1e-3) for row in best]


def test_each_prompt_token_has_the_log_probability_that_transformers_gives_it(tiny_models: TinyModels) -> None:
    model = tiny_models["qwen3"]
    engine = make_engine(model)
    prompt = model.prompts[49]
    engine.add(new_request(0, prompt, params=asking()))
    engine.add(new_request(1, prompt[:1], params=asking()))
    deltas = deltas_of(engine)
    assert_right(scores(deltas[0, 0]), model, prompt)
    assert scores(deltas[1, 0]) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 16},
        {"max_num_seqs": 2, "max_num_batched_tokens": 7},
        {"enable_prefix_caching": False},
        {"num_kv_blocks": 12, "admission": "prompt"},
    ],
)
def test_chunks_parts_and_preemptions_change_no_log_probability(
    settings: dict[str, Any], tiny_models: TinyModels
) -> None:
    model = tiny_models["llama-gqa"]
    prompts = [model.prompts[49], *model.prompts[:6], model.prompts[49]]
    plain, other = make_engine(model), make_engine(model, **settings)
    for engine in (plain, other):
        for request_id, prompt in enumerate(prompts):
            engine.add(new_request(request_id, prompt, params=asking(max_tokens=12, seed=1)))
    expected, found = deltas_of(plain), deltas_of(other)
    for request_id, prompt in enumerate(prompts):
        entries = scores(found[request_id, 0])
        assert len(entries) == len(prompt) - 1
        logprobs = [entry.logprob for entry in scores(expected[request_id, 0])]
        assert [entry.logprob for entry in entries] == pytest.approx(logprobs, abs=1e-3)
    assert_right(scores(found[0, 0]), model, prompts[0])
    assert (other.stats().scheduler.num_preemptions > 0) == ("num_kv_blocks" in settings)


def test_the_second_identical_request_still_gets_all_of_them(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    engine = make_engine(model)
    found = []
    for request_id in range(2):
        engine.add(new_request(request_id, model.prompts[49], params=asking()))
        found.append(deltas_of(engine)[request_id, 0])
    assert scores(found[1]) == scores(found[0])
    assert len(scores(found[0])) == len(model.prompts[49]) - 1
    assert found[1][0].num_cached_tokens == 0
    engine.add(new_request(2, model.prompts[49], params=asking(prompt_logprobs=None)))
    assert deltas_of(engine)[2, 0][0].num_cached_tokens > 0


def test_those_of_sampled_tokens_are_raw_as_those_of_a_prompt(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    engine, prompt = make_engine(model), model.prompts[49]
    edits: dict[str, Any] = {"temperature": 3.0, "logit_bias": {9: 50.0}, "top_k": 5, "repetition_penalty": 1.5}
    engine.add(
        new_request(0, prompt, params=SamplingParams(seed=5, max_tokens=12, ignore_eos=True, logprobs=4, **edits))
    )
    deltas = deltas_of(engine)[0, 0]
    decoded = [entry for delta in deltas for entry in delta.logprobs or []]
    engine.add(new_request(1, [*prompt, *tokens_of(deltas)], params=greedy(1, prompt_logprobs=4)))
    prefilled = (deltas_of(engine)[1, 0][0].prompt_logprobs or [])[-len(decoded) :]
    # A prompt is not sampled, so what equals its values is raw: before temperature, filters, bias and penalties.
    assert [entry.logprob for entry in decoded] == pytest.approx([entry.logprob for entry in prefilled], abs=1e-3)
    assert [entry.top_token_ids for entry in decoded] == [entry.top_token_ids for entry in prefilled]


def test_children_share_one_list(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    engine = make_engine(model)
    engine.add(new_request(0, model.prompts[49], params=asking(n=3, temperature=1.0, seed=2)))
    deltas = deltas_of(engine)
    assert_right(scores(deltas[0, 0]), model, model.prompts[49])
    assert all(delta.prompt_logprobs is None for index in (1, 2) for delta in deltas[0, index])
    assert all(deltas[0, index][0].num_cached_tokens > 0 for index in (1, 2))


def test_without_max_tokens_only_the_prompt_is_computed(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    engine = make_engine(model)
    engine.add(
        new_request(0, model.prompts[49], params=asking(max_tokens=0, logprobs=2, stop_token_ids=list(range(256))))
    )
    (delta,) = deltas_of(engine)[0, 0]
    assert (delta.token_ids, delta.logprobs, delta.finish_reason) == ([], None, FinishReason.LENGTH)
    assert_right(scores([delta]), model, model.prompts[49])
    assert engine.stats().requests.num_output_tokens == 0


def test_llm_returns_them_in_the_form_of_vllm(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    llm = LLM(model.path, device="cpu", dtype="float32", num_kv_blocks=64, warm_up=False)
    prompt = model.prompts[49]
    with_them, without = llm.generate([prompt, prompt], [asking(2), asking(2, prompt_logprobs=None)])
    assert without.prompt_logprobs is None
    assert with_them.prompt_logprobs is not None
    first, *others = with_them.prompt_logprobs
    assert first is None
    assert all(entry is not None and token in entry for token, entry in zip(prompt[1:], others, strict=True))
    assert {len(entry or {}) for entry in others} <= {2, 3}


def test_deltas_that_are_joined_keep_them() -> None:
    entry = TokenLogprobs(logprob=-1.0, rank=1, top_token_ids=[], top_logprobs=[])
    for first, later in ((None, [entry]), ([entry], None)):
        delta = TokenDelta(request_id=1, token_ids=[5], prompt_logprobs=first)
        delta.extend(TokenDelta(request_id=1, token_ids=[6], prompt_logprobs=later))
        assert (delta.token_ids, delta.prompt_logprobs) == ([5, 6], [entry])
