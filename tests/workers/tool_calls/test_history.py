"""Tests of histories with tool calls: prompts show the calls in any form that the chat template uses."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from jobs.lines.bodies import CHAT_ENDPOINT
from jobs.lines.body_checks import BodyError
from jobs.lines.reading import InputLine
from workers.prompts import PromptMaker

CALL = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": '{"zone":  "UTC"}'}}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "noon"}


def shown(
    tokenizer: Any,
    template: str,
    *,
    content: str | None = None,
    asked: str = "hi",
    calls: Any = (CALL,),
    tools: Any = None,
) -> str:
    """Return the template's prompt for a question, calls and a result."""
    templated = copy.deepcopy(tokenizer)
    templated.chat_template = template
    called = {"role": "assistant", "content": content, "tool_calls": list(calls)}
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": asked}, called, RESULT],
        "max_tokens": 1,
        "tools": tools,
    }
    line = InputLine(line_no=0, custom_id="a", model="demo", body=body)
    maker = PromptMaker(templated, max_model_len=2048, vocab_size=1024)
    (prompt,) = maker.prepare(line, endpoint=CHAT_ENDPOINT, batch_id="batch_1").prompts
    return str(tokenizer.decode(prompt))


def each(calls: str, *, otherwise: str = "{{ m.content }}") -> str:
    """Write a template with one output for messages that may have calls, and one for all others."""
    is_caller = "m.role == 'assistant'"
    return f"{{% for m in messages %}}{{% if {is_caller} %}}{calls}{{% else %}}{otherwise}|{{% endif %}}{{% endfor %}}"


def calls_of(arguments: str) -> str:
    return "{% for c in m.tool_calls %}CALL {{ c.function.name }} " + arguments + "|{% endfor %}"


OBJECT = "{{ c.function.arguments.items() | list | length }} {{ c.function.arguments | tojson }}"
TEXT = "{{ '' + c.function.arguments }}"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (each("{% if m.content %}SAID {{ m.content }}{% endif %}" + calls_of(OBJECT)), 'CALL now 1 {"zone": "UTC"}'),
        (each("{{ 'SAID ' + m.content + ' ' }}" + calls_of(OBJECT)), 'SAID  CALL now 1 {"zone": "UTC"}'),
        (each("{{ m.content }}" + calls_of(OBJECT)), 'CALL now 1 {"zone": "UTC"}'),
        (each("{% if m.content is defined %}{{ 1 + '' }}{% endif %}" + calls_of(TEXT)), 'CALL now {"zone":  "UTC"}'),
        (each("{{ 'SAID ' + m.content + ' ' }}" + calls_of(TEXT)), 'SAID  CALL now {"zone":  "UTC"}'),
        (
            each("{% if m.content is none %}" + calls_of(OBJECT) + "{% else %}{{ 'SAID ' + m.content }}{% endif %}"),
            'CALL now 1 {"zone": "UTC"}',
        ),
        (
            each("{% if m['content'] is none %}" + calls_of(TEXT) + "{% else %}{{ 'SAID ' + m.content }}{% endif %}"),
            'CALL now {"zone":  "UTC"}',
        ),
        (
            each(calls_of(TEXT) + "{% if m['content'] is not none %}{{ 'SAID ' + m.content }}|{% endif %}"),
            'CALL now {"zone":  "UTC"}',
        ),
    ],
    ids=[
        "looked at",
        "joined",
        "printed",
        "refused",
        "DeepSeek V3",
        "none",
        "distilled from DeepSeek R1",
        "with a turn of its own",
    ],
)
def test_past_calls_are_told_in_the_form_that_the_template_reads(tokenizer: Any, template: str, expected: str) -> None:
    assert shown(tokenizer, template) == f"hi|{expected}|noon|"
    assert shown(tokenizer, template, content="") == f"hi|{expected}|noon|"


def test_text_beside_calls_is_told_as_it_was_given(tokenizer: Any) -> None:
    template = each("{{ 'SAID ' + m.content + ' ' }}" + calls_of(TEXT))
    assert shown(tokenizer, template, content="Wait.") == 'hi|SAID Wait. CALL now {"zone":  "UTC"}|noon|'


def test_a_template_that_begins_with_a_line_end_keeps_it_in_every_form(tokenizer: Any) -> None:
    template = "\n\n" + each("{% if m.content is none %}" + calls_of(TEXT) + "{% endif %}")
    assert shown(tokenizer, template).startswith("\n\nhi|CALL now")


@pytest.mark.parametrize("asked", ["What time is it now?", "past_call_0"])
@pytest.mark.parametrize("template", [each("{{ m.content }}"), each(calls_of(TEXT).replace("name", "title"))])
def test_a_template_that_leaves_calls_out_is_the_lines_error_even_where_the_name_is_elsewhere(
    tokenizer: Any, template: str, asked: str
) -> None:
    with pytest.raises(BodyError, match="cannot show past tool calls: it leaves them out") as caught:
        shown(tokenizer, template, asked=asked)
    assert caught.value.param == "messages"


def test_every_call_must_be_shown(tokenizer: Any) -> None:
    template = each("CALL {{ m.tool_calls[0].function.name }}|")
    assert shown(tokenizer, template) == "hi|CALL now|noon|"
    with pytest.raises(BodyError, match="cannot show past tool calls"):
        shown(tokenizer, template, calls=[CALL, CALL])


def test_a_template_that_refuses_every_form_gives_its_reason(tokenizer: Any) -> None:
    with pytest.raises(BodyError, match="cannot show past tool calls: TemplateError: role is tool; allowed"):
        shown(tokenizer, tokenizer.chat_template, content="x")
    with pytest.raises(BodyError, match="cannot show past tool calls: TypeError"):
        shown(tokenizer, each(calls_of("{{ 1 + c.id }}")))


MISTRAL = """
{%- for m in messages if m.role != 'user' %}
    {%- set ids = m.tool_calls | map(attribute='id') | list if m.tool_calls else [m.tool_call_id] %}
    {%- for id in ids %}
        {%- if id | length != 9 %}{{ raise_exception('Tool call IDs should be of length 9!') }}{% endif %}
        {{- id }} {% for c in m.tool_calls %}{{ c.function.name }} {% endfor %}
    {%- endfor %}
{%- endfor %}{# tools #}"""


@pytest.mark.parametrize("form", ["[TOOL_CALLS]", "[TOOL_CALLS]f[ARGS]"])
@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "now"}}]])
def test_ids_of_a_history_become_ones_that_mistrals_templates_take(tokenizer: Any, form: str, tools: Any) -> None:
    call_id, name, result_id = shown(tokenizer, form + MISTRAL, tools=tools).removeprefix(form).split()
    assert re.fullmatch("[A-Za-z0-9]{9}", call_id)
    assert (name, result_id) == ("now", call_id)
    own = [{**CALL, "id": "aB3dE6gH9"}]
    assert "aB3dE6gH9 now" in shown(tokenizer, form + MISTRAL, calls=own, tools=tools)


def test_ids_for_other_templates_stay_as_they_were_given(tokenizer: Any) -> None:
    assert shown(tokenizer, each("{% for c in m.tool_calls %}{{ c.function.name + c.id }}{% endfor %}|")) == (
        "hi|nowcall_1|noon|"
    )
