"""Tests of sequences with a grammar beside others: each gets the same tokens as alone, whatever the steps."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import torch

from engine.build import build_engine
from engine.config import EngineConfig
from engine.grammars.masks import MaskWriter
from engine.llm import LLM
from engine.params import SamplingParams
from engine.structured import StructuredOutput
from tests.engine.builders import new_request, runner_of
from tests.engine.grammars.builders import MIXED, PERSON, TEXT, VOCAB_SIZE, run, run_to_end, structured, tokens


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


@pytest.mark.parametrize("overlap", [False, True])
def test_sitting_steps_out_for_another_tenant_changes_no_token(grammar_model: Path, *, overlap: bool) -> None:
    limits: dict[str, Any] = {
        "dtype": "float32",
        "num_kv_blocks": 600,
        "max_num_seqs": 64,
        "warm_up": False,
        "overlap": overlap,
    }
    engine = build_engine(EngineConfig(model=str(grammar_model), **limits))
    runner_of(engine)._masks = MaskWriter(
        vocab_size=VOCAB_SIZE, device=torch.device("cpu"), clock=itertools.count().__next__
    )  # by which the masks of a step take a second
    wanted = [*MIXED, SamplingParams(seed=1, logprobs=1, structured=StructuredOutput(json=PERSON))]
    for index, params in enumerate(wanted):
        engine.add(new_request(index, [index + 5, 6, 7], params, tenant="costly"))
        engine.add(new_request(index + 100, [index + 9, 6], SamplingParams(max_tokens=30, ignore_eos=True)))
    found: dict[int, list[int]] = {}
    num_sat_out = 0
    while engine.has_work:
        for delta in engine.step():
            found.setdefault(delta.request_id, []).extend(delta.token_ids)
        sat_out = set(engine.scheduler.running_sequences()) - set(engine.scheduler.last_plan.sequences)
        num_sat_out += len(sat_out)
        assert all(sequence.matcher is not None for sequence in sat_out)
        measured = engine.scheduler.last_plan.grammar_seconds
        assert all(sequence.matcher is not None and seconds > 0.0 for sequence, seconds in measured.items())
    assert num_sat_out > 100
    alone = LLM(grammar_model, dtype="float32", num_kv_blocks=600, warm_up=False)
    outputs = alone.generate([[index + 5, 6, 7] for index in range(len(wanted))], wanted)
    assert [found[index] for index in range(len(wanted))] == tokens(outputs)


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
