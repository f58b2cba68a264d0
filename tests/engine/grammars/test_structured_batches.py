"""Sequences with a grammar beside others: each gets the tokens that it gets alone, whatever the steps."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs

from engine.build import build_engine
from engine.config import EngineConfig
from engine.llm import LLM
from engine.params import SamplingParams
from engine.structured import StructuredOutput
from tests.engine.builders import new_request
from tests.engine.grammars.builders import MIXED, PERSON, TEXT, run, run_to_end, structured, tokens


def test_a_sequence_gets_the_same_tokens_alone_in_a_batch_and_after_preemption(grammar_model: Path) -> None:
    together, ample = run(grammar_model, MIXED)
    assert ample.scheduler.num_preemptions == 0
    scarce, stats = run(grammar_model, MIXED, num_kv_blocks=16, admission="prompt")
    assert stats.scheduler.num_preemptions > 0
    assert scarce == together
    llm = LLM(grammar_model, dtype="float32", num_kv_blocks=600, warm_up=False)
    alone = [tokens(llm.generate([TEXT[: 5 + index]], [params]))[0] for index, params in enumerate(MIXED)]
    assert alone == together


def test_small_steps_change_no_token(grammar_model: Path) -> None:
    together, _ = run(grammar_model, MIXED)
    small, _ = run(grammar_model, MIXED, max_num_batched_tokens=4, max_num_seqs=4)
    assert small == together


def test_overlap_changes_no_token_and_still_forces(grammar_model: Path) -> None:
    logprobs = [SamplingParams(seed=index, logprobs=1, structured=StructuredOutput(json=PERSON)) for index in range(3)]
    together, waiting = run(grammar_model, MIXED + logprobs)
    ample, stats = run(grammar_model, MIXED + logprobs, overlap=True)
    scarce, preempting = run(grammar_model, MIXED + logprobs, overlap=True, num_kv_blocks=16, admission="prompt")
    assert ample == scarce == together
    assert preempting.scheduler.num_preemptions > 0
    assert stats.requests.num_forced_tokens == waiting.requests.num_forced_tokens > 0


def test_sequences_without_a_grammar_are_not_touched_by_those_with_one(grammar_model: Path) -> None:
    free = [SamplingParams(seed=seed, max_tokens=20, ignore_eos=True) for seed in range(4)]
    alone, _ = run(grammar_model, free)
    mixed, _ = run(grammar_model, [*free, *MIXED[:4]])
    assert mixed[:4] == alone


def test_children_of_a_request_follow_the_grammar_each_by_itself(llm: LLM) -> None:
    (output,) = llm.generate(
        ["hello"], SamplingParams(n=4, seed=3, max_tokens=200, structured=StructuredOutput(json=PERSON))
    )
    written = [child.text for child in output.outputs]
    assert all(jsonschema_rs.is_valid(PERSON, json.loads(text)) for text in written)
    assert len(set(written)) == 4


def test_a_request_goes_on_after_the_output_of_an_earlier_run(grammar_model: Path, llm: LLM) -> None:
    (whole,) = tokens(llm.generate([TEXT[:9]], structured(5, json=PERSON)))
    prompt = llm.tokenizer(TEXT[:9])["input_ids"]
    for cut in (1, len(whole) // 2, len(whole) - 1):
        engine = build_engine(EngineConfig(model=str(grammar_model), dtype="float32", num_kv_blocks=64, warm_up=False))
        engine.add(new_request(0, prompt, params=structured(5, json=PERSON), output_token_ids=whole[:cut]))
        assert [token for delta in run_to_end(engine) for token in delta.token_ids] == whole[cut:]
