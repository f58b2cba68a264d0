"""Models whose angles change with a sequence's length: what a batch of both kinds shares, and what it never does.

That every way to run gives transformers' tokens, test_matrix.py and test_models_table.py show.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.loop.core import Engine
from engine.outputs import TokenDelta
from engine.scheduling.decisions import Reason
from tests.engine.builders import GivenDrafter, deltas_of, greedy, make_engine, new_request, tokens_of
from tests.engine.tiny_models import LONGROPE, TinyModel, certain_answers, save_tiny

LIMIT = 24
NUM_TOKENS = 12
PROMPT = [9 + 7 * index % 200 for index in range(40)]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = tmp_path_factory.mktemp("longrope")
    model = save_tiny(path, LONGROPE)
    model.generation_config.eos_token_id = None
    return path, model


def engine_of(oracle: tuple[Path, Any], **settings: Any) -> Engine:
    return make_engine(TinyModel(oracle[0], [], [], []), block_size=4, **settings)


def answer(engine: Engine, request_id: int, prompt: list[int], **asked: Any) -> list[TokenDelta]:
    params = greedy(NUM_TOKENS, **asked.pop("params", {}))
    engine.add(new_request(request_id, prompt, params=params, **asked))
    return deltas_of(engine)[request_id, 0]


def num_cached(deltas: list[TokenDelta]) -> int:
    return max(delta.num_cached_tokens or 0 for delta in deltas)


@pytest.mark.parametrize("length", [LIMIT - NUM_TOKENS + 1, LIMIT - 4, LIMIT, LIMIT + 1, 40])
def test_a_sequence_has_the_angles_of_its_own_length(oracle: tuple[Path, Any], length: int) -> None:
    prompt, model = PROMPT[:length], oracle[1]
    [expected] = certain_answers(model, [prompt], [NUM_TOKENS])
    ids = torch.tensor([prompt])
    with torch.inference_mode():  # transformers' own cache: it computes a sequence that passes the limit anew, too
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, do_sample=False)
    assert out[0, length:].tolist() == expected, "a near-tie: take other tokens"
    engine = engine_of(oracle)
    assert tokens_of(answer(engine, 1, prompt)) == expected
    anew = [one for one in engine.decisions() if one.reason is Reason.NEW_ANGLES]
    assert len(anew) == (length <= LIMIT < length + NUM_TOKENS - 1)
    assert engine.stats().scheduler.num_preemptions == 0


def test_blocks_are_shared_among_sequences_of_one_set_of_angles_alone(oracle: tuple[Path, Any]) -> None:
    engine, short, long = engine_of(oracle), PROMPT[:12], PROMPT
    first, other, again, short_again = (
        answer(engine, index, prompt) for index, prompt in enumerate((short, long, long, short))
    )
    assert (num_cached(first), num_cached(other)) == (0, 0), "its keys are turned otherwise"
    assert (num_cached(again), num_cached(short_again)) == (36, 8)
    assert [tokens_of(other), tokens_of(first)] == certain_answers(oracle[1], [long, short], [NUM_TOKENS] * 2)
    assert [tokens_of(again), tokens_of(short_again)] == [tokens_of(other), tokens_of(first)]


@pytest.mark.parametrize("has_prefix_cache", [True, False])
def test_a_child_that_is_late_takes_no_blocks_of_a_longer_first_one(
    oracle: tuple[Path, Any], *, has_prefix_cache: bool
) -> None:
    engine = engine_of(oracle, enable_prefix_caching=has_prefix_cache, max_num_seqs=2)
    engine.add(new_request(1, PROMPT[:3], params=greedy(9)))  # until it ends, the late one has no seat
    engine.add(new_request(2, PROMPT[:20], params=greedy(NUM_TOKENS, n=2)))
    [expected] = certain_answers(oracle[1], [PROMPT[:20]], [NUM_TOKENS])
    found = deltas_of(engine)
    assert [tokens_of(found[2, index]) for index in range(2)] == [expected] * 2


@pytest.mark.parametrize("num_kept", [2, 9])
def test_a_drained_request_goes_on_on_either_side_of_the_limit(oracle: tuple[Path, Any], num_kept: int) -> None:
    prompt = PROMPT[: LIMIT - 4]
    whole = tokens_of(answer(engine_of(oracle), 1, prompt))
    rest = answer(engine_of(oracle), 1, prompt, output_token_ids=whole[:num_kept])
    assert tokens_of(rest) == whole[num_kept:]


def test_drafts_go_no_further_than_the_angles_hold(oracle: tuple[Path, Any]) -> None:
    prompt = PROMPT[: LIMIT - 4]
    whole = tokens_of(answer(engine_of(oracle), 1, prompt))
    engine = engine_of(oracle)
    engine.loop.drafter = GivenDrafter(lambda ids, left: whole[len(ids) - len(prompt) :][:left])
    assert tokens_of(answer(engine, 1, prompt)) == whole
    assert engine.stats().scheduler.num_steps < NUM_TOKENS


def test_prompts_have_the_log_probabilities_of_their_own_length(oracle: tuple[Path, Any]) -> None:
    engine = engine_of(oracle)
    for request_id, length in enumerate((LIMIT, LIMIT + 1)):
        prompt = PROMPT[:length]
        deltas = answer(engine, request_id, prompt, params={"prompt_logprobs": 0})
        scored = next(delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs is not None)
        with torch.inference_mode():
            logits = oracle[1](torch.tensor([prompt]), use_cache=False).logits[0, :-1].log_softmax(-1)
        expected = logits.gather(-1, torch.tensor(prompt[1:])[:, None])[:, 0].tolist()
        assert [entry.logprob for entry in scored] == pytest.approx(expected, abs=1e-3)
