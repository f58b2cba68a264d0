"""Structured output in the engine: a random model with a real tokenizer must write what its grammars allow, no more.

With random weights every step is a throw of the dice, so nothing but the grammar makes the output right.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from engine.build import build_engine
from engine.config import EngineConfig
from engine.core import Engine
from engine.errors import InvalidRequestError
from engine.grammars import output as grammar_output
from engine.grammars.grammar import GrammarMatcher, GrammarTokens
from engine.llm import LLM
from engine.outputs import RequestOutput, TokenDelta
from engine.params import SamplingParams
from engine.stats import EngineStats
from engine.structured import StructuredOutput
from tests.engine.builders import new_request
from tests.engine.grammars.builders import TEXT
from tests.engine.tiny_models import TINY, save_tiny

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["paid", "late", "new"]}, "maxItems": 3},
        "email": {"anyOf": [{"type": "string", "pattern": "^[a-z]{1,5}@[a-z]{1,5}\\.com$"}, {"type": "null"}]},
    },
    "required": ["name", "age", "tags", "email"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "leaf": {"type": "object", "properties": {"id": {"type": "boolean"}}, "required": ["id"]},
    },
    "type": "object",
    "properties": {
        "left": {"$ref": "#/$defs/leaf"},
        "right": {"$ref": "#/$defs/leaf"},
        "total": {"type": "string", "format": "date"},
    },
    "required": ["left", "right", "total"],
    "additionalProperties": False,
}
TREE["$defs"]["leaf"]["additionalProperties"] = False  # type: ignore[index]
LIST = {
    "type": "array",
    "items": {"oneOf": [{"const": "vendor"}, {"type": "integer", "maximum": 999, "minimum": -9}]},
    "minItems": 2,
    "maxItems": 4,
}
SCHEMAS = {"person": PERSON, "tree": TREE, "list": LIST}

ARITHMETIC = """
start: term (SIGN term)*
term: NUMBER | "(" start ")"
NUMBER: /[0-9]{1,3}/
SIGN: "+" | "-"
"""


@pytest.fixture
def llm(grammar_model: Path) -> LLM:
    return LLM(grammar_model, dtype="float32", num_kv_blocks=600, max_num_seqs=64, warm_up=False)


def structured(seed: int = 0, *, max_tokens: int = 200, **fields: Any) -> SamplingParams:
    return SamplingParams(seed=seed, max_tokens=max_tokens, structured=StructuredOutput(**fields))


def texts(outputs: list[RequestOutput]) -> list[str]:
    """Return the texts of outputs that came to their own end."""
    assert [output.outputs[0].finish_reason for output in outputs] == ["stop"] * len(outputs), [
        output.outputs[0].error for output in outputs
    ]
    return [output.outputs[0].text for output in outputs]


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("name", SCHEMAS)
def test_32_random_sequences_are_all_valid_against_their_schema(llm: LLM, name: str) -> None:
    schema = SCHEMAS[name]
    written = texts(llm.generate([TEXT[:20]] * 32, [structured(seed, json=schema) for seed in range(32)]))
    validator = jsonschema_rs.validator_for(schema)
    assert [text for text in written if not validator.is_valid(json.loads(text))] == []
    assert len(set(written)) > 16
    assert all(json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False) for text in written)


def test_white_space_comes_only_where_it_is_allowed(llm: LLM) -> None:
    schema = {**LIST, "x-guidance": {"whitespace_pattern": " {1,3}"}}
    assert not re.search(r"[\s]", "".join(texts(llm.generate(["a"] * 8, [structured(s, json=LIST) for s in range(8)]))))
    spaced = texts(llm.generate(["a"] * 8, [structured(s, json=schema, any_whitespace=True) for s in range(8)]))
    assert " " in "".join(spaced)
    assert all(jsonschema_rs.is_valid(LIST, json.loads(text)) for text in spaced)


def test_regex_choice_lark_and_json_objects_are_kept(llm: LLM) -> None:
    params = [
        structured(1, regex="[0-9]{3}-[a-f]{2,4}x?"),
        structured(2, choice=["yes", "no", "perhaps é"]),
        structured(3, grammar=ARITHMETIC),
        structured(4, json_object=True, max_tokens=30),
    ]
    outputs = llm.generate(["hello"] * 4, params)
    digits, answer, sum_, object_ = (output.outputs[0] for output in outputs)
    assert re.fullmatch("[0-9]{3}-[a-f]{2,4}x?", digits.text)
    assert answer.text in ("yes", "no", "perhaps é")
    assert re.fullmatch(r"[0-9+\-()]+", sum_.text)
    assert object_.text.startswith("{")
    assert object_.finish_reason == "length" or isinstance(json.loads(object_.text), dict)


def test_greedy_and_filtered_sampling_keep_the_grammar_too(llm: LLM) -> None:
    shape = StructuredOutput(json=PERSON)
    params = [
        SamplingParams(temperature=0.0, max_tokens=200, structured=shape),
        SamplingParams(top_k=3, seed=1, max_tokens=200, structured=shape),
        SamplingParams(top_p=0.3, seed=2, max_tokens=200, structured=shape),
        SamplingParams(min_p=0.5, seed=3, max_tokens=200, structured=shape),
        SamplingParams(repetition_penalty=1.5, frequency_penalty=1.0, seed=4, max_tokens=200, structured=shape),
    ]
    assert all(
        jsonschema_rs.is_valid(PERSON, json.loads(text)) for text in texts(llm.generate(["abc"] * len(params), params))
    )


# --- forced tokens ---------------------------------------------------------------------------------------------------

MIXED = [structured(seed, json=PERSON) for seed in range(6)] + [structured(seed, json=TREE) for seed in range(5)]
MIXED.append(
    SamplingParams(
        seed=9, max_tokens=200, repetition_penalty=1.3, presence_penalty=0.5, structured=StructuredOutput(json=TREE)
    )
)


def run(path: Path, params: list[SamplingParams], **settings: Any) -> tuple[list[list[int]], EngineStats]:
    llm = LLM(path, dtype="float32", warm_up=False, **{"num_kv_blocks": 600, "max_num_seqs": 64, **settings})
    return tokens(llm.generate([TEXT[: 5 + index] for index in range(len(params))], params)), llm.stats()


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


# --- beside others ---------------------------------------------------------------------------------------------------


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


# --- what ends it ----------------------------------------------------------------------------------------------------


def test_min_tokens_holds_off_the_end_only_where_the_text_may_go_on(llm: LLM) -> None:
    shape = StructuredOutput(regex="[a-c]*")
    longer, _, complete = llm.generate(
        ["hello"] * 3,
        [
            SamplingParams(seed=1, min_tokens=30, max_tokens=200, structured=shape),
            SamplingParams(seed=1, max_tokens=200, structured=shape),
            SamplingParams(seed=1, min_tokens=30, max_tokens=200, structured=StructuredOutput(choice=["yes", "no"])),
        ],
    )
    assert len(longer.outputs[0].token_ids) > 30
    assert longer.outputs[0].finish_reason == "stop"
    assert complete.outputs[0].text in ("yes", "no")
    assert complete.outputs[0].finish_reason == "stop"


def test_parameters_that_leave_no_token_fail_their_own_request(llm: LLM) -> None:
    digits = StructuredOutput(regex="[0-9]{9}")
    bound, other = llm.generate(
        ["hello"] * 2,
        [
            SamplingParams(seed=1, structured=digits, allowed_token_ids=llm.tokenizer("abc")["input_ids"]),
            structured(1, regex="[0-9]{9}"),
        ],
    )
    assert bound.outputs[0].finish_reason == "error"
    assert str(bound.outputs[0].error).startswith("No token that the grammar allows after 0 tokens could be taken")
    assert re.fullmatch("[0-9]{9}", other.outputs[0].text)


@pytest.mark.parametrize("logprobs", [None, 0])
def test_a_forced_token_that_the_request_forbids_is_not_taken(llm: LLM, logprobs: int | None) -> None:
    only = StructuredOutput(choice=["yes"])
    forced = llm.generate(["hello"], SamplingParams(seed=1, structured=only))[0].outputs[0].token_ids[0]
    params = SamplingParams(seed=1, structured=only, bad_words_token_ids=[(forced,)], logprobs=logprobs)
    (output,) = llm.generate(["hello"], params)[0].outputs
    assert forced not in output.token_ids


def test_one_childs_failure_ends_its_request_and_no_other(llm: LLM) -> None:
    params = SamplingParams(
        n=3, seed=1, structured=StructuredOutput(regex="[0-9]{9}"), allowed_token_ids=llm.tokenizer("abc")["input_ids"]
    )
    failed, other = llm.generate(["hello"] * 2, [params, structured(1, choice=["yes", "no"])])
    assert [child.finish_reason for child in failed.outputs] == ["error"] * 3
    assert other.outputs[0].finish_reason == "stop"
    llm.engine.scheduler.check_integrity()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"json": {"type": "array", "uniqueItems": True}}, "The JSON schema uses uniqueItems, which is not supported"),
        ({"regex": "("}, "The regex cannot be used"),
        ({"grammar": "start: nowhere"}, "The grammar cannot be used"),
    ],
)
def test_a_bad_grammar_fails_its_own_request_only(llm: LLM, fields: dict[str, Any], reason: str) -> None:
    bad, good = llm.generate(["hello"] * 2, [structured(**fields), structured(choice=["yes", "no"])])
    assert bad.outputs[0].finish_reason == "error"
    assert str(bad.outputs[0].error).startswith(reason)
    assert good.outputs[0].text in ("yes", "no")


def test_a_model_without_a_tokenizer_refuses_grammars_and_runs_the_rest(tmp_path: Path) -> None:
    save_tiny(tmp_path, {"model_type": "llama"})
    llm = LLM(tmp_path, dtype="float32", num_kv_blocks=64, warm_up=False)
    refused, other = llm.generate([[5, 6]] * 2, [structured(regex="a"), SamplingParams(max_tokens=3, ignore_eos=True)])
    assert "Structured output needs a tokenizer.json in the model's directory" in str(refused.outputs[0].error)
    assert len(other.outputs[0].token_ids) == 3


def test_a_tokenizer_larger_than_the_model_is_refused(grammar_model: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((grammar_model / name).read_bytes())
    tokens = GrammarTokens(tmp_path, vocab_size=TINY["vocab_size"], eos_token_ids=(2,))
    with pytest.raises(InvalidRequestError, match="cannot use this model's tokenizer: vocab size too small"):
        tokens.load()


# --- while it is compiled --------------------------------------------------------------------------------------------


class SlowGrammars:
    """Hold compilation up until `release` is set."""

    def __init__(self, compile_: Callable[[Any, StructuredOutput], GrammarMatcher]) -> None:
        self.release = threading.Event()
        self._compile = compile_

    def compile(self, tokens: GrammarTokens, structured: StructuredOutput) -> GrammarMatcher:
        assert self.release.wait(60.0)
        return self._compile(tokens, structured)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Any:
    slow = SlowGrammars(GrammarTokens.compile)

    def compile_(tokens: GrammarTokens, structured: StructuredOutput) -> GrammarMatcher:
        return slow.compile(tokens, structured)

    monkeypatch.setattr(GrammarTokens, "compile", compile_)
    yield slow
    slow.release.set()


def run_to_end(engine: Engine) -> list[TokenDelta]:
    deltas = []
    while engine.has_work:
        deltas += engine.step()
    return deltas


def test_other_requests_run_while_a_grammar_is_compiled(grammar_model: Path, slow: SlowGrammars) -> None:
    engine = build_engine(EngineConfig(model=str(grammar_model), dtype="float32", num_kv_blocks=64, warm_up=False))
    engine.add(new_request(1, [5, 6, 7], params=structured(choice=["yes", "no"])))
    engine.add(new_request(2, [5, 6, 7], params=SamplingParams(max_tokens=5, ignore_eos=True)))
    ended: list[TokenDelta] = []
    while not ended:
        ended = [delta for delta in engine.step() if delta.finish_reason is not None]
    assert [delta.request_id for delta in ended] == [2]
    assert engine.has_work
    assert engine.stats().load.num_waiting == 1
    assert engine.step() == []
    slow.release.set()
    assert [delta.finish_reason for delta in run_to_end(engine) if delta.finish_reason] == ["stop"]


def test_a_request_can_be_aborted_while_its_grammar_is_compiled(grammar_model: Path, slow: SlowGrammars) -> None:
    engine = build_engine(EngineConfig(model=str(grammar_model), dtype="float32", num_kv_blocks=64, warm_up=False))
    engine.add(new_request(1, [5, 6, 7], params=SamplingParams(n=2, structured=StructuredOutput(choice=["yes", "no"]))))
    engine.abort([1])
    assert [(delta.index, delta.finish_reason) for delta in run_to_end(engine)] == [(0, "abort"), (1, "abort")]
    slow.release.set()
    assert not engine.has_work


@pytest.mark.parametrize("index", [0, 1])
def test_one_child_can_be_aborted_while_its_grammar_is_compiled(
    index: int, grammar_model: Path, slow: SlowGrammars
) -> None:
    engine = build_engine(EngineConfig(model=str(grammar_model), dtype="float32", num_kv_blocks=64, warm_up=False))
    engine.add(new_request(1, [5, 6, 7], params=SamplingParams(n=2, structured=StructuredOutput(choice=["yes", "no"]))))
    engine.abort_children([(1, index), (1, index), (1, 7), (9, 0)])
    assert [(delta.index, delta.finish_reason) for delta in engine.step()] == [(index, "abort")]
    slow.release.set()
    ended = [delta for delta in run_to_end(engine) if delta.finish_reason is not None]
    assert [(delta.index, delta.finish_reason) for delta in ended] == [(1 - index, "stop")]


def test_a_slow_grammar_fails_its_own_request_only(grammar_model: Path, slow: SlowGrammars) -> None:
    config = EngineConfig(
        model=str(grammar_model), dtype="float32", num_kv_blocks=64, warm_up=False, grammar_timeout_seconds=1e-9
    )
    engine = build_engine(config)
    engine.add(new_request(1, [5, 6, 7], params=structured(choice=["yes", "no"])))
    engine.add(new_request(2, [5, 6, 7], params=SamplingParams(max_tokens=5, ignore_eos=True)))
    ended = {delta.request_id: delta for delta in run_to_end(engine) if delta.finish_reason is not None}
    assert ended[1].finish_reason == "error"
    assert str(ended[1].error).startswith("The grammar was not compiled within 1e-09 s")
    assert ended[2].finish_reason == "length"
