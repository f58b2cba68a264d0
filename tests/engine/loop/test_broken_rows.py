"""Tests of requests whose logits are NaN: they end with such an error; others end as they would alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine import LLM
from engine.config import Speculation
from engine.outputs import FinishReason
from engine.params import SamplingParams
from engine.structured import StructuredOutput
from tests.engine.broken_models import POISON, overflowing, poisoned
from tests.engine.builders import (
    GivenDrafter,
    add_all,
    deltas_of,
    greedy,
    make_engine,
    new_request,
    run_to_end,
    tokens_of,
)
from tests.engine.tiny_models import TinyModel, TinyModels

pytestmark = [pytest.mark.comparison, pytest.mark.long]

PROMPT = [7, 8, POISON, 9]
AFTER_ONE = greedy(6, allowed_token_ids=[POISON])
"""Has the poison as its first token, and a broken row behind it."""

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"seed": 3},
    "filtered": {"seed": 3, "top_k": 9, "top_p": 0.9, "min_p": 0.01},
    "penalised": {"seed": 4, "frequency_penalty": 0.7, "repetition_penalty": 1.2},
    "biased": {"temperature": 0.0, "logit_bias": {7: 50.0}},
    "allowed": {"temperature": 0.0, "allowed_token_ids": [5, 6]},
    "bad words": {"seed": 5, "bad_words_token_ids": [(5,), (6, 7)]},
    "min tokens": {"temperature": 0.0, "ignore_eos": False, "min_tokens": 3},
    "log-probabilities": {"temperature": 0.0, "logprobs": 3},
    "of the prompt": {"temperature": 0.0, "prompt_logprobs": 2},
    "of the prompt alone": {"temperature": 0.0, "prompt_logprobs": 2, "max_tokens": 0},
}


@pytest.fixture(scope="module")
def model(tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return poisoned(tiny_models["llama-gqa"], tmp_path_factory.mktemp("poisoned") / "model")


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_broken_row_ends_its_request_and_gives_no_token(way: str, model: TinyModel, *, overlap: bool) -> None:
    engine = make_engine(model, overlap=overlap)
    engine.add(new_request(0, PROMPT, params=SamplingParams(**{"max_tokens": 5, "ignore_eos": True, **WAYS[way]})))
    (delta,) = deltas_of(engine)[0, 0]
    assert (delta.finish_reason, delta.token_ids, delta.logprobs) == (FinishReason.ERROR, [], None)
    assert (delta.is_broken, delta.good_rows_before, delta.prompt_logprobs) == (True, 0, None)
    assert engine.stats().requests.num_broken == 1


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_requests_beside_a_broken_one_are_told_what_they_are_told_without_it(
    number: float, tiny_models: TinyModels, tmp_path: Path, *, overlap: bool
) -> None:
    whole = tiny_models["llama-gqa"]
    engines = [make_engine(one, overlap=overlap) for one in (whole, poisoned(whole, tmp_path / "model", number=number))]
    found = []
    for engine in engines:
        add_all(engine, whole)
        found.append(run_to_end(engine))
    has_poison = {
        child for child in found[0] if POISON in whole.prompts[child[0] % 12] or POISON in found[0][child].token_ids
    }
    assert len(has_poison) < len(found[0])
    for child in found[0].keys() - has_poison:
        assert found[1][child].token_ids == found[0][child].token_ids
        assert found[1][child].finish_reason is found[0][child].finish_reason


@pytest.mark.parametrize("overlap", [False, True])
def test_tokens_before_the_break_are_kept_and_none_after(model: TinyModel, *, overlap: bool) -> None:
    engine = make_engine(model, overlap=overlap)
    engine.add(new_request(0, [7, 8], params=AFTER_ONE))
    deltas = deltas_of(engine)[0, 0]
    assert tokens_of(deltas) == [POISON]
    assert deltas[-1].good_rows_before == 1


def test_what_overflows_on_the_way_is_broken_too(tiny_models: TinyModels, tmp_path: Path) -> None:
    engine = make_engine(overflowing(tiny_models["qwen3"], tmp_path / "model"))
    for request_id in range(3):
        engine.add(new_request(request_id, [5, 6, 7], params=greedy(4)))
    assert all(delta.is_broken for deltas in deltas_of(engine).values() for delta in deltas)


def test_a_model_of_bf16_breaks_alike(model: TinyModel) -> None:
    engine = make_engine(model, dtype="bfloat16")
    engine.add(new_request(0, PROMPT, params=greedy(4)))
    engine.add(new_request(1, [7, 8], params=greedy(4)))
    deltas = deltas_of(engine)
    assert [delta.is_broken for delta in deltas[0, 0]] == [True]
    assert len(tokens_of(deltas[1, 0])) == 4


def test_all_children_of_a_request_end_with_the_first_that_breaks(model: TinyModel) -> None:
    engine = make_engine(model)
    engine.add(new_request(0, [7, 8], params=SamplingParams(n=3, allowed_token_ids=[POISON], max_tokens=4)))
    ends = [deltas[-1] for deltas in deltas_of(engine).values()]
    assert [(end.finish_reason, end.is_broken) for end in ends] == [(FinishReason.ERROR, True)] * 3


@pytest.mark.parametrize("guess", [[9, 9, 9], [POISON, 9, 9]])
def test_of_drafts_the_rows_that_are_used_decide(guess: list[int], model: TinyModel) -> None:
    """A guess at the poison breaks the rows behind it, which count only where the model takes it, too."""
    engine = make_engine(model, speculation=Speculation.OFF)
    engine.loop.drafter = GivenDrafter(lambda token_ids, left: guess)
    engine.add(new_request(0, [7, 8], params=greedy(6, bad_words_token_ids=[(POISON,)])))
    engine.add(new_request(1, [7, 8], params=AFTER_ONE))
    deltas = deltas_of(engine)
    assert len(tokens_of(deltas[0, 0])) == 6
    assert tokens_of(deltas[1, 0]) == [POISON]
    assert deltas[1, 0][-1].is_broken


def test_an_engine_that_guesses_by_itself_breaks_alike(model: TinyModel) -> None:
    engine = make_engine(model, speculation=Speculation.NGRAM)
    engine.add(new_request(0, [7, 8, 9] * 6 + [POISON], params=greedy(6)))
    engine.add(new_request(1, [7, 8, 9] * 6, params=AFTER_ONE))
    deltas = deltas_of(engine)
    assert [deltas[request_id, 0][-1].is_broken for request_id in (0, 1)] == [True, True]


def test_what_a_request_leaves_no_token_of_is_no_broken_row(model: TinyModel) -> None:
    engine = make_engine(model)
    words = [(7, token) for token in range(256)]
    engine.add(new_request(0, [5, 6], params=greedy(5, logit_bias={7: 99.0}, bad_words_token_ids=words)))
    end = deltas_of(engine)[0, 0][-1]
    assert (end.finish_reason, end.is_broken) == (FinishReason.ERROR, False)
    assert engine.stats().requests.num_broken == 0


def test_a_broken_prefix_is_found_by_nobody(model: TinyModel) -> None:
    engine = make_engine(model, block_size=4)
    stem = [5, 6, 7, 8] * 4
    for request_id, prompt in enumerate(([*stem, 9], [*stem, POISON, 9, 9, 9, 9])):
        engine.add(new_request(request_id, prompt, params=greedy(2)))
        run_to_end(engine)
    engine.add(new_request(2, [*stem, 9], params=greedy(2)))
    assert run_to_end(engine)[2, 0].num_cached_tokens == 0


def test_with_a_grammar_a_broken_row_is_told_from_one_that_the_grammar_leaves_nothing_of(
    grammar_model: Path, tmp_path: Path
) -> None:
    broken = TinyModel(grammar_model, [], [], [])
    llm = LLM(poisoned(broken, tmp_path / "model").path, dtype="float32", num_kv_blocks=60)
    params = SamplingParams(seed=1, max_tokens=8, structured=StructuredOutput(regex="[0-9]{3}x"))
    forbidden = SamplingParams(seed=1, allowed_token_ids=[5], structured=StructuredOutput(regex="[0-9]{3}x"))
    given = [[7, POISON, 9], [7, 8, 9], [7, 8, 9]]
    outputs = [output.outputs[0] for output in llm.generate(given, [params, params, forbidden])]
    assert [output.finish_reason for output in outputs] == ["error", "stop", "error"]
    assert llm.stats().requests.num_broken == 1


def test_the_llm_says_of_a_broken_prompt_what_broke(model: TinyModel) -> None:
    (output,) = LLM(model.path, dtype="float32", num_kv_blocks=60).generate([PROMPT], greedy(3))
    assert (output.outputs[0].finish_reason, output.outputs[0].token_ids) == ("error", [])
    assert "NaN or infinite" in str(output.outputs[0].error)
