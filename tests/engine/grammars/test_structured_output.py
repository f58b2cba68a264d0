"""Structured output in the engine: a random model with a real tokenizer must write what its grammars allow, no more.

With random weights every step is a throw of the dice, so nothing but the grammar makes the output right.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from engine.errors import InvalidRequestError
from engine.grammars.grammar import GrammarTokens
from engine.llm import LLM
from engine.params import SamplingParams
from engine.structured import StructuredOutput
from tests.engine.grammars.builders import LIST, PERSON, TEXT, TREE, structured, texts
from tests.engine.tiny_models import TINY, save_tiny

SCHEMAS = {"person": PERSON, "tree": TREE, "list": LIST}

ARITHMETIC = """
start: term (SIGN term)*
term: NUMBER | "(" start ")"
NUMBER: /[0-9]{1,3}/
SIGN: "+" | "-"
"""


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


def test_a_grammar_that_outgrows_the_library_says_so(llm: LLM) -> None:
    words = {"type": "string", "pattern": r"^(?:\S+\s+){0,400}\S+$", "maxLength": 3_000}
    failed, other = llm.generate(["hello"] * 2, [structured(1, json=words), structured(1, choice=["yes"])])
    error = str(failed.outputs[0].error)
    assert (error.startswith("The grammar cannot be followed after "), "simpler" in error) == (True, True)
    assert other.outputs[0].text == "yes"


@pytest.mark.parametrize(
    "shape",
    [
        StructuredOutput(grammar="root ::= root root | root"),
        StructuredOutput(json={"$ref": "#"}),
        StructuredOutput(regex="[^\\s\\S]"),
    ],
)
def test_a_grammar_that_no_text_fits_says_so(llm: LLM, shape: StructuredOutput) -> None:
    (output,) = llm.generate(["hello"], SamplingParams(structured=shape))[0].outputs
    assert "cannot be used: no text fits it" in str(output.error)


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
