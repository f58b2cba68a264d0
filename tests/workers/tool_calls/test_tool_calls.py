"""Tests of outputs constrained to a tool call, by random walks through the grammar."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from engine.grammars.grammar import GrammarTokens, MaskFiller, check_grammar
from engine.structured import StructuredOutput
from jobs.lines.bodies import CHAT_ENDPOINT, ChatRequest, parse_body
from jobs.lines.body_tools import Choice
from jobs.lines.responses import ToolCall
from tests.workers.tool_calls.builders import SCHEMAS, TOOLS, use
from workers.tool_calls.forms import (
    DEEPSEEK_CALL,
    DEEPSEEK_CALLS,
    DEEPSEEK_SEPARATOR,
    CallForm,
)
from workers.tool_calls.output import CallReader
from workers.tool_calls.writing import constraint

VOCAB = 400


EOS = 1


MARKS = [
    *("<think>", "</think>"),
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<|tool_call|>", "<|/tool_call|>"),
    *(*DEEPSEEK_CALLS, *DEEPSEEK_CALL, DEEPSEEK_SEPARATOR),
]


@pytest.fixture(scope="module", params=["special", "added", "plain"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Make a byte-level BPE in which the marks of calls are special tokens, added tokens, or plain text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - 20,
        special_tokens=["<pad>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(['{"name": "weather", "arguments": {"city": "Paris", "days": 3}}'], trainer)
    if request.param != "plain":
        made.add_tokens([AddedToken(mark, special=request.param == "special", normalized=False) for mark in MARKS])
    path = tmp_path_factory.mktemp("tokenizer")
    (path / "config.json").write_text('{"model_type": "llama"}')
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", pad_token="<pad>").save_pretrained(path)
    return path, PreTrainedTokenizerFast.from_pretrained(path)


def special_ids_of(tokenizer: Any) -> dict[str, int]:
    return {token.content: token_id for token_id, token in tokenizer.added_tokens_decoder.items()}


@cache
def grammar_tokens(path: Path) -> GrammarTokens:
    """Read a tokenizer once for all outputs; every compiled grammar has a state of its own."""
    return GrammarTokens(path, vocab_size=VOCAB, eos_token_ids=(EOS,))


def random_output(path: Path, tokenizer: Any, structured: StructuredOutput, *, seed: int, begin: str = "") -> str:
    """Walk through the grammar at random to its end; return the text, special tokens included."""
    rng = random.Random(seed)
    matcher = grammar_tokens(path).compile(structured)
    filler, words = MaskFiller(), np.zeros((1, -(-VOCAB // 32)), dtype=np.int32)
    output: list[int] = tokenizer.encode(begin, add_special_tokens=False)
    for token in output:
        assert matcher.accept(token), matcher.error
    while True:
        filler.fill([(matcher, 0, [])], words)
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")[:VOCAB]).tolist()
        token = EOS if EOS in allowed and len(output) > 60 else rng.choice(allowed)
        if token == EOS:
            return str(tokenizer.decode(output, skip_special_tokens=False))
        assert matcher.accept(token), matcher.error
        output.append(token)


@pytest.mark.parametrize("form", CallForm)
def test_a_required_call_is_always_well_formed(form: CallForm, tokenizer: Any) -> None:
    path, fast = tokenizer
    counts = set()
    for is_parallel in (True, False):
        wanted = use(is_parallel=is_parallel)
        structured = constraint(form, wanted, special_ids_of(fast))
        assert structured is not None
        for seed in range(6):
            text = random_output(path, fast, structured, seed=seed)
            found = CallReader.of(form, use()).read(text)
            assert found is not None, text
            content, calls = found
            assert content == ""
            assert all(jsonschema_rs.is_valid(SCHEMAS[call.name], json.loads(call.arguments)) for call in calls)
            counts.add((is_parallel, len(calls)))
    assert {count for parallel, count in counts if not parallel} == {1}


RICH = {
    "$defs": {"unit": {"enum": ["C", "F", "5"]}, "note": {"type": "string", "maxLength": 4}},
    "type": "object",
    "properties": {
        "unit": {"$ref": "#/$defs/unit"},
        "exact": {"type": "boolean"},
        "places": {"type": "array", "items": {"$ref": "#/$defs/note"}, "maxItems": 2},
        "level": {"enum": [1, 2, None, "high"]},
        "note": {"$ref": "#/$defs/note", "description": "Anything."},
        "share": {"type": "number", "minimum": 0, "maximum": 1},
    },
    "required": ["exact", "note"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("form", CallForm)
def test_a_required_call_keeps_the_schema_of_every_argument(form: CallForm, tokenizer: Any) -> None:
    path, fast = tokenizer
    wanted = use(tools=({"type": "function", "function": {"name": "rich", "parameters": RICH}},), is_parallel=False)
    structured = constraint(form, wanted, special_ids_of(fast))
    assert structured is not None
    given: list[frozenset[str]] = []
    for seed in range(12):
        text = random_output(path, fast, structured, seed=seed)
        found = CallReader.of(form, wanted).read(text)
        assert found is not None, text
        arguments = json.loads(found[1][0].arguments)
        assert jsonschema_rs.is_valid(RICH, arguments), text
        given.append(frozenset(arguments))
    assert len(set(given)) > 3  # some with optional arguments, some without


@pytest.mark.parametrize("form", list(CallForm))
def test_keywords_that_constrain_nothing_are_no_hindrance_to_a_required_call(form: CallForm) -> None:
    idle = {"type": "array", "items": {"type": "integer", "format": "uuid4"}, "uniqueItems": False}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"ids": idle}}}}
    grammar = constraint(form, use(tools=(tool,)), {})
    assert grammar is not None
    check_grammar(grammar)


def test_a_line_may_have_one_of_in_its_tools_taken_as_any_of() -> None:
    either = {"oneOf": [{"type": "integer"}, {"minimum": 3}]}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"count": either}}}}
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [tool], "tool_choice": "required"}
    request = parse_body(CHAT_ENDPOINT, {**body, "one_of_as_any_of": True})
    assert isinstance(request, ChatRequest)
    assert request.tool_use is not None
    grammar = constraint(CallForm.HERMES, request.tool_use, {})
    assert grammar is not None
    check_grammar(grammar)


def test_a_named_function_is_the_only_one_called(tokenizer: Any) -> None:
    path, fast = tokenizer
    structured = constraint(CallForm.HERMES, use(tools=TOOLS[1:], is_parallel=False), special_ids_of(fast))
    assert structured is not None
    text = random_output(path, fast, structured, seed=0)
    assert CallReader.of(CallForm.HERMES, use()).read(text) == ("", [ToolCall(name="now", arguments="{}")])


def test_where_the_model_may_choose_and_nothing_is_strict_nothing_is_constrained() -> None:
    assert constraint(CallForm.HERMES, use(Choice.AUTO), {}) is None


STRICT = tuple({**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS)


FIRST_MARKS = {
    CallForm.HERMES: "<tool_call>",
    CallForm.LLAMA: "{",
    CallForm.PYTHONIC: "[",
    CallForm.MISTRAL: "[TOOL_CALLS][",
    CallForm.MISTRAL_NAMED: "[TOOL_CALLS]",
    CallForm.GRANITE: "<|tool_call|>[",
    CallForm.PHI: "<|tool_call|>",
    CallForm.FUNCTOOLS: "functools[",
    CallForm.DEEPSEEK: DEEPSEEK_CALLS[0],
    CallForm.DEEPSEEK_NAMED: DEEPSEEK_CALLS[0],
    CallForm.XML: "<tool_call>",
}


@pytest.mark.parametrize("form", CallForm)
def test_a_strict_function_may_be_called_after_text_and_then_keeps_its_schema(form: CallForm, tokenizer: Any) -> None:
    path, fast = tokenizer
    structured = constraint(form, use(Choice.AUTO, tools=STRICT), special_ids_of(fast))
    assert structured is not None
    text = "" if form in (CallForm.LLAMA, CallForm.PYTHONIC) else "Let me see.\n{[ "
    for seed in range(6):
        output = random_output(path, fast, structured, seed=seed, begin=text + FIRST_MARKS[form])
        found = CallReader.of(form, use()).read(output)
        assert found is not None, output
        content, calls = found
        assert content == text.strip()
        assert all(jsonschema_rs.is_valid(SCHEMAS[call.name], json.loads(call.arguments)) for call in calls)


@pytest.mark.parametrize("form", CallForm)
def test_a_strict_function_need_not_be_called(form: CallForm, tokenizer: Any) -> None:
    path, fast = tokenizer
    structured = constraint(form, use(Choice.AUTO, tools=STRICT), special_ids_of(fast))
    assert structured is not None
    output = random_output(path, fast, structured, seed=1, begin="It is 7 degrees; the tool functools { was [ no use. ")
    assert CallReader.of(form, use()).read(output) is None


def test_a_model_may_think_before_it_calls_a_strict_function(tokenizer: Any) -> None:
    path, fast = tokenizer
    structured = constraint(CallForm.HERMES, use(Choice.AUTO, tools=STRICT), special_ids_of(fast))
    assert structured is not None
    output = random_output(path, fast, structured, seed=0, begin="<think>Which one?</think>\n<tool_call>")
    found = CallReader.of(CallForm.HERMES, use()).read(output)
    assert found is not None
    assert found[0] == "<think>Which one?</think>"
