"""Tests of tool calls as models write them: each form is detected by its template, and parsed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.lines.responses import ToolCall
from tests.workers.tool_calls.builders import use
from workers.tool_calls.forms import (
    SHORT_ID_FORMS,
    CallForm,
    form_of,
)
from workers.tool_calls.output import CallReader


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
