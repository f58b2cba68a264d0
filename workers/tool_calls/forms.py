"""The forms in which models write tool calls, and the detection of a chat template's form."""

from __future__ import annotations

from enum import StrEnum


class CallForm(StrEnum):
    """A form of tool calls."""

    HERMES = "hermes"
    """Qwen too: <tool_call>{"name": …, "arguments": {…}}</tool_call>, repeated."""
    LLAMA = "llama"
    """3.x; 4 with its own template: {"name": …, "parameters": {…}}, perhaps after <|python_tag|>, separated by
    semicolons."""
    PYTHONIC = "pythonic"
    """Llama 3.2 and 4, ToolACE: [name(argument=value, …), …]."""
    MISTRAL = "mistral"
    """[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]."""
    MISTRAL_NAMED = "mistral_named"
    """From 2025: [TOOL_CALLS]name[ARGS]{…}, repeated."""
    GRANITE = "granite"
    """3.x: <|tool_call|>[{"name": …, "arguments": {…}}, …]."""
    PHI = "phi"
    """<|tool_call|>{"name": …, "arguments": {…}}<|/tool_call|>, repeated."""
    FUNCTOOLS = "functools"
    """Phi-4-mini: functools[{"name": …, "arguments": {…}}, …]."""
    DEEPSEEK = "deepseek"
    """V3, R1: <｜tool▁calls▁begin｜>, then for each call <｜tool▁call▁begin｜>function<｜tool▁sep｜>name and a fenced
    block of JSON, <｜tool▁call▁end｜>, and <｜tool▁calls▁end｜>."""
    DEEPSEEK_NAMED = "deepseek_named"
    """V3.1: the same with <｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>."""
    XML = "xml"
    """Qwen3-Coder: <tool_call><function=name><parameter=argument>value</parameter>…</function></tool_call>."""


SHORT_ID_FORMS = frozenset({CallForm.MISTRAL, CallForm.MISTRAL_NAMED})
"""Their templates refuse a call whose id is not 9 letters and digits."""

DEEPSEEK_CALLS = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
DEEPSEEK_CALL = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
DEEPSEEK_SEPARATOR = "<｜tool▁sep｜>"

_SIGNS: tuple[tuple[tuple[str, ...], CallForm | None], ...] = (
    (("<function=", "<parameter="), CallForm.XML),
    (("<function=",), None),  # the tags of Llama 3.1's optional form
    (("<function_call>",), None),  # Granite 20B
    ((DEEPSEEK_CALLS[0], "```json"), CallForm.DEEPSEEK),
    ((DEEPSEEK_CALLS[0],), CallForm.DEEPSEEK_NAMED),
    (("functools[",), CallForm.FUNCTOOLS),
    (("<|/tool_call|>",), CallForm.PHI),
    (("<|tool_call|>",), CallForm.GRANITE),
    (("[func_name1(",), CallForm.PYTHONIC),
    (("<tool_call>",), CallForm.HERMES),
    (("[ARGS]",), CallForm.MISTRAL_NAMED),
    (("[TOOL_CALLS]",), CallForm.MISTRAL),
    (("<|python_tag|>",), CallForm.LLAMA),
    (('"parameters"',), CallForm.LLAMA),
)
"""Strings of a template that identify its form; the first match decides."""


def form_of(chat_template: str) -> CallForm | None:
    """Return the form that a chat template uses; None if it has no tools or an unknown form."""
    if "tools" not in chat_template:
        return None
    return next((form for signs, form in _SIGNS if all(sign in chat_template for sign in signs)), None)


class MalformedCall(Exception):
    """The output looks like a call but is not a valid one."""
