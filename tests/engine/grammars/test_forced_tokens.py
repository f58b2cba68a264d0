"""Tests of tokens that a grammar forces: they save steps, and change no token and no log-probability."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.grammars import output as grammar_output
from engine.grammars.grammar import GrammarTokens
from engine.llm import LLM
from engine.params import SamplingParams
from engine.structured import StructuredOutput
from tests.engine.grammars.builders import MIXED, PERSON, TEXT, VOCAB_SIZE, run, structured, texts, tokens


def turn_forcing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_output, "append_forced", lambda sequence, delta: 0)
    monkeypatch.setattr(grammar_output, "forced_drafts", lambda sequence: [])


def test_forced_tokens_save_steps_and_change_no_token(grammar_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced, fast = run(grammar_model, MIXED)
    turn_forcing_off(monkeypatch)
    plain, slow = run(grammar_model, MIXED)
    assert forced == plain
    assert slow.requests.num_forced_tokens == 0
    assert fast.requests.num_output_tokens == slow.requests.num_output_tokens == sum(map(len, plain))
    assert fast.requests.num_forced_tokens > 0.4 * fast.requests.num_output_tokens
    assert fast.scheduler.num_seqs < 0.6 * slow.scheduler.num_seqs


class CountingMatcher:
    """llguidance's matcher, with a count of the calls for forced tokens, over all its copies."""

    def __init__(self, inner: Any, asked: list[int]) -> None:
        self._inner, self._asked = inner, asked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def deep_copy(self) -> CountingMatcher:
        return CountingMatcher(self._inner.deep_copy(), self._asked)

    def compute_ff_tokens(self) -> list[int]:
        found: list[int] = self._inner.compute_ff_tokens()
        self._asked.append(len(found))
        return found


def test_forced_tokens_are_found_once_for_all_that_follow_them(grammar_model: Path) -> None:
    grammars = GrammarTokens(grammar_model, vocab_size=VOCAB_SIZE, eos_token_ids=(0,))
    compiled = grammars.compile(StructuredOutput(regex="(a{30}){100}[bc]d{9}e?"))
    asked: list[int] = []
    compiled.inner = CountingMatcher(compiled.inner, asked)
    for _ in range(3):
        matcher = compiled.copy()
        chain = matcher.forced_tokens()
        for n in range(9):
            assert matcher.accept(chain[n])
            assert matcher.forced_tokens() == chain[n + 1 :]
    assert asked == []
    for token in chain[9:]:
        assert matcher.accept(token)
    matcher.forced_tokens()
    assert len(asked) == 1


def test_with_logprobs_forced_tokens_are_drafts_and_each_has_its_own(
    grammar_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = StructuredOutput(json=PERSON)
    with_logprobs = [SamplingParams(seed=seed, max_tokens=200, structured=schema, logprobs=2) for seed in range(4)]
    llm = LLM(grammar_model, dtype="float32", num_kv_blocks=600, warm_up=False)
    outputs = llm.generate([TEXT[:9]] * 4, with_logprobs)
    assert all(len(output.outputs[0].logprobs or []) == len(output.outputs[0].token_ids) for output in outputs)
    steps = llm.stats().scheduler.num_steps
    turn_forcing_off(monkeypatch)
    llm = LLM(grammar_model, dtype="float32", num_kv_blocks=600, warm_up=False)
    assert tokens(llm.generate([TEXT[:9]] * 4, with_logprobs)) == tokens(outputs)
    assert steps < 0.8 * llm.stats().scheduler.num_steps


def test_logprobs_are_of_the_raw_distribution(llm: LLM) -> None:
    free = SamplingParams(temperature=0.0, max_tokens=1, logprobs=3)
    bound = SamplingParams(temperature=0.0, max_tokens=1, logprobs=3, structured=StructuredOutput(regex="[0-9]"))
    (one,), (other,) = (output.outputs[0].logprobs or [] for output in llm.generate(["abc"] * 2, [free, bound]))
    likeliest = [(token, entry.logprob) for token, entry in one.items()]
    assert likeliest[:3] == [(token, entry.logprob) for token, entry in other.items()][:3]
    assert max(entry.rank or 0 for entry in other.values()) > 3


def test_wrong_and_half_right_drafts_change_no_token(grammar_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = run(grammar_model, MIXED[3:9])
    whole = {5 + index: found for index, found in enumerate(plain)}

    def guess(sequence: Any) -> list[int]:
        num_output, left = sequence.num_output_tokens, sequence.max_total_tokens - sequence.num_tokens - 1
        right = next(
            found for found in whole.values() if found[:num_output] == sequence.token_ids[sequence.num_prompt_tokens :]
        )
        return [*right[num_output : num_output + num_output % 4], 2, 300, 2][: max(0, left)]

    monkeypatch.setattr(grammar_output, "forced_drafts", guess)
    drafted, _ = run(grammar_model, MIXED[3:9], max_num_batched_tokens=300)
    assert drafted == plain


def test_a_choice_of_one_needs_no_step(llm: LLM) -> None:
    assert texts(llm.generate(["hello"], structured(choice=["the only answer"]))) == ["the only answer"]
    assert llm.stats().scheduler.num_steps == 0


def test_max_tokens_cuts_forced_tokens_too(llm: LLM) -> None:
    (output,) = llm.generate(["hello"], structured(choice=["the only answer"], max_tokens=2))
    assert output.outputs[0].finish_reason == "length"
    assert len(output.outputs[0].token_ids) == 2
