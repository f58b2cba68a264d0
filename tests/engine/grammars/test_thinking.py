"""Tests of outputs that think first: their grammar applies behind the thoughts, and a budget ends them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from engine.grammars import output as grammar_output
from engine.llm import LLM
from engine.outputs import CompletionOutput
from engine.params import SamplingParams
from engine.scheduling.request import NewRequest
from engine.structured import StructuredOutput
from engine.thoughts import PartedTokens, ThoughtMarks, Thoughts, parted
from tests.engine.grammars.builders import PERSON, run_to_end

BEGIN, END, EOS = 3, 1, 2
"""`<|tool|>` and `<s>` of the tokenizer stand for marks of thoughts, `</s>` ends an output."""
MARKS = ThoughtMarks(begin=(BEGIN,), end=END)
OPEN = Thoughts(marks=MARKS, is_open=True)
CLOSED = Thoughts(marks=MARKS)
CHANNELS = ThoughtMarks(begin=(BEGIN, 40, 0), end=END, bare=(BEGIN, 41, 0), bridge=(50, BEGIN, 41, 0))


def thinking(seed: int, thoughts: Thoughts, **changed: Any) -> SamplingParams:
    """Return the parameters of a structured output whose end mark is likely enough to come."""
    plain: dict[str, Any] = {
        "seed": seed,
        "max_tokens": 300,
        "structured": StructuredOutput(json=PERSON),
        "logit_bias": {END: 4.0},
        "thoughts": thoughts,
    }
    return SamplingParams(**plain | changed)


def outputs(llm: LLM, params: list[SamplingParams]) -> list[CompletionOutput]:
    return [one.outputs[0] for one in llm.generate(["Who is it?"] * len(params), params)]


def read(output: CompletionOutput, thoughts: Thoughts) -> PartedTokens:
    ids = output.token_ids
    return parted(ids[:-1] if output.finish_reason == "stop" else ids, thoughts)


def record(llm: LLM, output: CompletionOutput, thoughts: Thoughts) -> Any:
    assert output.finish_reason == "stop", output.error
    return json.loads(llm.tokenizer.decode(read(output, thoughts).answer))


@pytest.mark.parametrize("logprobs", [None, 1])
def test_a_structured_output_begins_behind_the_thoughts(llm: LLM, logprobs: int | None) -> None:
    found = outputs(llm, [thinking(seed, OPEN, logprobs=logprobs) for seed in range(6)])
    assert all(jsonschema_rs.is_valid(PERSON, record(llm, one, OPEN)) for one in found)
    assert max(len(read(one, OPEN).thoughts) for one in found) > 3
    assert all(EOS not in one.token_ids[:-1] for one in found)


def test_a_model_may_think_first_or_answer_at_once(llm: LLM) -> None:
    likely = [thinking(seed, CLOSED, logit_bias={END: 4.0, BEGIN: 6.0}) for seed in range(3)]
    never = [thinking(seed, CLOSED, logit_bias={BEGIN: -100.0}) for seed in range(3)]
    found = outputs(llm, [*likely, *never])
    assert [one.token_ids[0] == BEGIN for one in found] == [True] * 3 + [False] * 3
    assert all(jsonschema_rs.is_valid(PERSON, record(llm, one, CLOSED)) for one in found)


def test_channels_lead_to_a_structured_answer(llm: LLM) -> None:
    thoughts = Thoughts(marks=CHANNELS)
    found = outputs(llm, [thinking(seed, thoughts) for seed in range(8)])
    assert all(jsonschema_rs.is_valid(PERSON, record(llm, one, thoughts)) for one in found)
    headers = {tuple(one.token_ids[:3]) for one in found}
    assert headers == {CHANNELS.begin, CHANNELS.bare}


@pytest.mark.parametrize("structured", [None, StructuredOutput(json=PERSON)])
@pytest.mark.parametrize("logprobs", [None, 1])
@pytest.mark.parametrize("marks", [MARKS, CHANNELS])
def test_a_budget_ends_the_thoughts(
    llm: LLM, structured: StructuredOutput | None, logprobs: int | None, marks: ThoughtMarks
) -> None:
    never = {END: -100.0, EOS: -100.0} if structured is None else {END: -100.0}
    thoughts = Thoughts(marks=marks, is_open=True, budget=5)
    (found,) = outputs(
        llm, [thinking(0, thoughts, structured=structured, logprobs=logprobs, logit_bias=never, max_tokens=200)]
    )
    read_output = read(found, thoughts)
    assert len(read_output.thoughts) == 5
    assert tuple(found.token_ids[5 : 6 + len(marks.bridge)]) == (END, *marks.bridge)
    assert read_output.has_spent_budget
    assert read_output.answer
    assert structured is None or jsonschema_rs.is_valid(PERSON, record(llm, found, thoughts))


def test_a_budget_of_zero_ends_thoughts_before_the_first_token(llm: LLM) -> None:
    thoughts = replace(OPEN, budget=0)
    (found,) = outputs(llm, [thinking(0, thoughts)])
    assert found.token_ids[0] == END
    assert jsonschema_rs.is_valid(PERSON, record(llm, found, thoughts))


def test_thoughts_take_from_max_tokens(llm: LLM) -> None:
    (found,) = outputs(llm, [thinking(0, OPEN, max_tokens=4, logit_bias={END: -100.0})])
    assert (found.finish_reason, len(found.token_ids)) == ("length", 4)
    assert read(found, OPEN).is_cut


def test_drafts_across_the_end_of_thoughts_change_no_token(
    grammar_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts are right, half right and wrong, in the thoughts, over their end and in the answer."""
    settings: dict[str, Any] = {"dtype": "float32", "num_kv_blocks": 600, "warm_up": False}
    params = [
        *(thinking(seed, replace(OPEN, budget=seed * 3)) for seed in range(4)),
        *(thinking(seed, CLOSED, logit_bias={END: 4.0, BEGIN: 6.0}) for seed in range(3)),
        thinking(7, Thoughts(marks=CHANNELS)),
    ]
    plain = [one.token_ids for one in outputs(LLM(grammar_model, **settings), params)]

    def guess(sequence: Any) -> list[int]:
        so_far, left = sequence.num_output_tokens, sequence.max_total_tokens - sequence.num_tokens - 1
        known = sequence.token_ids[sequence.num_prompt_tokens :]
        right = next(found for found in plain if found[:so_far] == known)
        return [*right[so_far : so_far + so_far % 5], 2, 300, 2][: max(0, left)]

    monkeypatch.setattr(grammar_output, "append_forced", lambda sequence, delta: 0)
    monkeypatch.setattr(grammar_output, "forced_drafts", guess)
    drafted = outputs(LLM(grammar_model, max_num_batched_tokens=400, **settings), params)
    assert [one.token_ids for one in drafted] == plain


@pytest.mark.parametrize("num_kept", [1, 4, 9, 30])
def test_an_output_resumes_in_its_thoughts_and_behind_them(llm: LLM, num_kept: int) -> None:
    params = thinking(3, replace(OPEN, budget=6))
    (whole,) = outputs(llm, [params])
    prompt = llm.tokenizer.encode("Who is it?")
    llm.engine.add(
        NewRequest(request_id=77, prompt_token_ids=prompt, params=params, output_token_ids=whole.token_ids[:num_kept])
    )
    rest = [token_id for delta in run_to_end(llm.engine) for token_id in delta.token_ids]
    assert [*whole.token_ids[:num_kept], *rest] == whole.token_ids


def test_thoughts_without_a_budget_or_a_grammar_are_not_followed(llm: LLM) -> None:
    with_marks = thinking(0, OPEN, structured=None, max_tokens=20)
    found, plain = outputs(llm, [with_marks, replace(with_marks, thoughts=None)])
    assert found.token_ids == plain.token_ids
