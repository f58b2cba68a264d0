"""Tool calls: the common forms read, and outputs constrained to a call, by random walks through the grammar."""

from __future__ import annotations

import json
import random
from dataclasses import replace
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
from jobs.lines.body_tools import Choice, ToolUse
from jobs.lines.responses import ToolCall
from workers.tool_calls.forms import (
    DEEPSEEK_CALL,
    DEEPSEEK_CALLS,
    DEEPSEEK_SEPARATOR,
    SHORT_ID_FORMS,
    CallForm,
    form_of,
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

WEATHER = {
    "$defs": {"place": {"type": "string", "maxLength": 6}},
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/place"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: tuple[dict[str, Any], ...] = (
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
)
SCHEMAS: dict[str, dict[str, Any]] = {"weather": WEATHER, "now": {"const": {}}}


def use(choice: Choice = Choice.REQUIRED, *, is_parallel: bool = True, tools: Any = TOOLS) -> ToolUse:
    return ToolUse(offered=TOOLS, callable=tools, choice=choice, is_parallel=is_parallel)


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{% if tools %}<tool_call>{{ x }}</tool_call>", CallForm.HERMES),
        ("{% if tools %}<|python_tag|>", CallForm.LLAMA),
        ('{{ tools }} {"name": f, "parameters": p}', CallForm.LLAMA),
        ("{{ tools }}[TOOL_CALLS] [", CallForm.MISTRAL),
        ("{{ tools }}[TOOL_CALLS]f[ARGS]{}", CallForm.MISTRAL_NAMED),
        ("{{ tools }}<tool_call><function=f><parameter=x>", CallForm.XML),
        ("{{ tools }}<｜tool▁calls▁begin｜>function<｜tool▁sep｜>f\n```json", CallForm.DEEPSEEK),
        ("{{ tools }}<｜tool▁calls▁begin｜>f<｜tool▁sep｜>{}", CallForm.DEEPSEEK_NAMED),
        ("{{ tools }}functools[", CallForm.FUNCTOOLS),
        ("{{ tools }}<|tool_call|>{}<|/tool_call|>", CallForm.PHI),
        ("{{ tools }}respond with <|tool_call|> followed by a list", CallForm.GRANITE),
        ("{{ tools }}<|python_tag|>[func_name1(a=b), func_name2(c)]", CallForm.PYTHONIC),
        ("{{ tools }}<function=f>{}</function>", None),
        ('{{ tools }}{"parameters": {}}<function_call>', None),
        ("{{ messages }}<tool_call>", None),
        ("{{ tools }}", None),
    ],
)
def test_the_chat_template_tells_the_form(template: str, form: CallForm | None) -> None:
    assert form_of(template) is form


NOW = ToolCall(name="now", arguments="{}")
NOW_CALL = '{"name": "now", "arguments": {}}'
PARIS_CALL = '{"name": "weather", "arguments": {"city": "Pâris", "days": 2}}'
PARIS = ToolCall(name="weather", arguments='{"city": "Pâris", "days": 2}')


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        (CallForm.HERMES, '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', "", [NOW]),
        (
            CallForm.HERMES,
            'Wait.\n<tool_call>{"name":"now","arguments":{}}</tool_call>\n'
            '<tool_call>{"name":"weather","arguments":{"city":"Pâris","days":2}}',
            "Wait.",
            [NOW, PARIS],
        ),
        (CallForm.LLAMA, '{"name": "now", "parameters": {}}', "", [NOW]),
        (
            CallForm.LLAMA,
            '<|python_tag|>{"name": "now", "parameters": {}}; {"name": "weather", "arguments": '
            '{"city": "P\\u00e2ris", "days": 2}}',
            "",
            [NOW, PARIS],
        ),
        (CallForm.MISTRAL, '[TOOL_CALLS] [{"name": "now", "arguments": {}}]', "", [NOW]),
        (CallForm.MISTRAL_NAMED, 'Yes[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now[CALL_ID]abc[ARGS]{}', "Yes", [NOW, NOW]),
        (CallForm.GRANITE, f'So:<|tool_call|>[{NOW_CALL}, {PARIS_CALL}]', "So:", [NOW, PARIS]),
        (CallForm.PHI, f'So:<|tool_call|>{PARIS_CALL}<|/tool_call|>', "So:", [PARIS]),
        (CallForm.PHI, f'<|tool_call|>[{PARIS_CALL}]<|/tool_call|><|tool_call|>{PARIS_CALL}', "", [PARIS, PARIS]),
        (CallForm.FUNCTOOLS, f' functools[{PARIS_CALL}]', "", [PARIS]),
        (
            CallForm.DEEPSEEK,
            'So:<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>\n'
            '<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{"city": "Pâris",\n"days": 2}\n```'
            '<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
            "So:",
            [NOW, PARIS],
        ),
        (
            CallForm.DEEPSEEK_NAMED,
            'So:<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁call▁begin｜>weather'
            '<｜tool▁sep｜>{"city": "Pâris", "days": 2}',
            "So:",
            [NOW, PARIS],
        ),
        (CallForm.PYTHONIC, '[now(), weather(city="Pâris", days=2)]', "", [NOW, PARIS]),
        (CallForm.PYTHONIC, "<|python_start|>[weather(city = 'Pâris', days = 2,)]<|python_end|>", "", [PARIS]),
        (
            CallForm.XML,
            'So:\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=weather>\n'
            '<parameter=city>\nPâris\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>',
            "So:",
            [NOW, PARIS],
        ),
    ],
)  # fmt: skip
def test_each_form_is_read(form: CallForm, text: str, content: str, calls: list[ToolCall]) -> None:
    expected = [replace(call, has_short_id=form in SHORT_ID_FORMS) for call in calls]
    assert CallReader.of(form, use()).read(text) == (content, expected)


@pytest.mark.parametrize("form", CallForm)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "It is noon.",
        "<tool_call>",
        '<tool_call>{"name": "now", "arguments": {}</tool_call>',
        '<tool_call>{"name": "now", "arguments": "{}"}</tool_call>',
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {}} {}</tool_call>',
        '{"name": "now"}',
        '{"name": "now", "parameters": {}} and more',
        '{"name": "unknown", "parameters": {}}',
        "[TOOL_CALLS]",
        '[TOOL_CALLS] {"name": "now", "arguments": {}}',
        '[TOOL_CALLS] [{"name": "now", "arguments": {}}',
        '[TOOL_CALLS] [{"name": "unknown", "arguments": {}}]',
        "[TOOL_CALLS]unknown[ARGS]{}",
        "[TOOL_CALLS]now[ARGS]{",
        '<tool_call>{"name": [], "arguments": {}}</tool_call>',
        '<tool_call>{"name": {}, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {"a": "\\ud83d"}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>',
        "{" * 5000,
        "[TOOL_CALLS]" + "[" * 100_000,
        '<|tool_call|>[{"name": "now", "arguments": {}}',
        '<|tool_call|>[{"name": "unknown", "arguments": {}}]',
        "<|tool_call|>[1]<|/tool_call|>",
        "Use functools in Python.",
        'functools[{"name": "now", "arguments": {}}] and more',
        "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>other<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>unknown<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now{}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>Now: <｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        "[]",
        "[1]",
        "[now]",
        "[now()",
        "[now()] and more",
        "So: [now()]",
        "[unknown()]",
        "[now(1)]",
        "[now(a=b)]",
        "[now(a=1 b=2)]",
        "[now(a=1, a=2)]",
        '[now(a="b)]',
        '[now(a="\\ud83d")]',
        "[now(a=1e999)]",
        "[now(a=" + "9" * 5000 + ")]",
        "[now(a=" + "[" * 100_000,
        "<function=now>",
        "<function=unknown></function>",
        "<tool_call><function=now></tool_call>",
        "<tool_call><function=now>{}</function></tool_call>",
        "<tool_call><function=now><parameter=a>1</function></tool_call>",
        "<tool_call><function=now><parameter=a>1</parameter><parameter=a>1</parameter></function></tool_call>",
        "<tool_call><function=now></function></tool_call><tool_call>",
    ],
)
def test_what_is_malformed_or_was_not_offered_stays_text(form: CallForm, text: str) -> None:
    assert CallReader.of(form, use()).read(text) is None


def test_without_parallel_calls_only_the_first_is_taken() -> None:
    text = "[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now[ARGS]{}"
    assert CallReader.of(CallForm.MISTRAL_NAMED, use(is_parallel=False)).read(text) == (
        "",
        [replace(NOW, has_short_id=True)],
    )


# --- outputs constrained to calls ------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["special", "added", "plain"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Make a byte-level BPE with the marks of calls as special tokens, as added ones, or as plain text."""
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
    """Walk through the grammar at random to its end; return what was written, special tokens included."""
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
    assert CallReader.of(CallForm.HERMES, use()).read(text) == ("", [NOW])


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
