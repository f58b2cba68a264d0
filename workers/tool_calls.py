"""How models write tool calls: read the common forms, and constrain an output to one.

A form is chosen by the model's chat template, which is what taught it the form. Knows no engine process and no SQL.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from engine.structured import StructuredOutput
from jobs.body_tools import Choice, ToolUse
from jobs.responses import ToolCall


class CallForm(StrEnum):
    """How a call is written.

    HERMES (Qwen too): <tool_call>{"name": …, "arguments": {…}}</tool_call>, repeated.
    LLAMA (3.x): {"name": …, "parameters": {…}}, perhaps after <|python_tag|>, separated by semicolons.
    MISTRAL: [TOOL_CALLS] [{"name": …, "arguments": {…}}, …].
    MISTRAL_NAMED (from 2025): [TOOL_CALLS]name[ARGS]{…}, repeated.
    """

    HERMES = "hermes"
    LLAMA = "llama"
    MISTRAL = "mistral"
    MISTRAL_NAMED = "mistral_named"


_MARKS: Final = (
    ("<tool_call>", CallForm.HERMES),
    ("[ARGS]", CallForm.MISTRAL_NAMED),
    ("[TOOL_CALLS]", CallForm.MISTRAL),
    ("<|python_tag|>", CallForm.LLAMA),
    ('"parameters"', CallForm.LLAMA),
)


def form_of(chat_template: str) -> CallForm | None:
    """Return the form that a chat template shows, None when it knows no tools or another form."""
    if "tools" not in chat_template or "<function=" in chat_template:  # XML: arguments of no type
        return None
    return next((form for mark, form in _MARKS if mark in chat_template), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReader:
    """Finds the calls in an output: of functions that may be called, and the first one only unless `is_parallel`."""

    form: CallForm
    names: frozenset[str]
    is_parallel: bool

    @classmethod
    def of(cls, form: CallForm, tool_use: ToolUse) -> "CallReader":
        names = frozenset(_function(tool)["name"] for tool in tool_use.callable)
        return cls(form=form, names=names, is_parallel=tool_use.is_parallel)

    def read(self, text: str) -> tuple[str, list[ToolCall]] | None:
        """Return the text beside the calls and the calls; None where there are none, or one is malformed.

        `text` is the output with its special tokens.
        """
        try:
            content, written = _READERS[self.form](text)
            calls = [self._call(one) for one in written]
        except _Malformed:
            return None
        if not calls:
            return None
        return content.strip(), calls if self.is_parallel else calls[:1]

    def _call(self, written: Any) -> ToolCall:
        name = written.get("name") if isinstance(written, dict) else None
        if not isinstance(name, str) or name not in self.names:
            raise _Malformed
        arguments = written.get("arguments", written.get("parameters"))
        if not isinstance(arguments, dict):
            raise _Malformed
        return ToolCall(name=name, arguments=_as_json(arguments))


class _Malformed(Exception):
    """The output looks like a call and is none."""


def _as_json(arguments: dict[str, Any]) -> str:
    """Write arguments as JSON that every reader takes: no NaN, no half of a surrogate pair, no bottomless nesting."""
    try:
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        written.encode()
    except (ValueError, RecursionError):
        raise _Malformed from None
    return written


# --- reading ---------------------------------------------------------------------------------------------------------

_decoder: Final = json.JSONDecoder()
_HERMES: Final = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


def _read_hermes(text: str) -> tuple[str, list[Any]]:
    return _HERMES.sub("", text), [_whole_json(found) for found in _HERMES.findall(text)]


def _read_llama(text: str) -> tuple[str, list[Any]]:
    rest = text.strip().removeprefix("<|python_tag|>").strip()
    calls = []
    while rest:
        call, rest = _first_json(rest)
        calls.append(call)
        rest = rest.strip().removeprefix(";").strip()
    return "", calls


def _read_mistral(text: str) -> tuple[str, list[Any]]:
    content, mark, rest = text.partition("[TOOL_CALLS]")
    calls = _whole_json(rest) if mark else []
    if not isinstance(calls, list):
        raise _Malformed
    return content, calls


def _read_mistral_named(text: str) -> tuple[str, list[Any]]:
    content, *parts = text.split("[TOOL_CALLS]")
    calls = []
    for part in parts:
        name, _, arguments = part.partition("[ARGS]")
        calls.append({"name": name.partition("[CALL_ID]")[0].strip(), "arguments": _whole_json(arguments)})
    return content, calls


_READERS: Final = {
    CallForm.HERMES: _read_hermes,
    CallForm.LLAMA: _read_llama,
    CallForm.MISTRAL: _read_mistral,
    CallForm.MISTRAL_NAMED: _read_mistral_named,
}


def _whole_json(text: str) -> Any:
    found, rest = _first_json(text.strip())
    if rest.strip():
        raise _Malformed
    return found


def _first_json(text: str) -> tuple[Any, str]:
    try:
        found, end = _decoder.raw_decode(text)
    except (ValueError, RecursionError):
        raise _Malformed from None
    return found, text[end:]


# --- constraining ----------------------------------------------------------------------------------------------------


def constraint(form: CallForm, tool_use: ToolUse, special_ids: Mapping[str, int]) -> StructuredOutput | None:
    """Return the grammar of an output that only calls tools, None where the model may choose.

    `special_ids` are the tokens that the tokenizer never makes of plain text: a mark that is one of them is written as
    that token.
    """
    if tool_use.choice is not Choice.REQUIRED:
        return None
    functions = [_function(tool) for tool in tool_use.callable]
    write = _WRITERS[form]
    rules = [f"call: {' | '.join(f'f{place}' for place in range(len(functions)))}"]
    for place, function in enumerate(functions):
        rules.append(f"f{place}: {write.function(function['name'], f'a{place}', special_ids)}")
        rules.append(f"a{place}: %json {_parameters(function)}")
    start = write.several if tool_use.is_parallel and write.several else write.one
    marks = {name: _mark(text, special_ids) for name, text in _MARK_TEXTS.items()}
    return StructuredOutput(grammar="\n".join([f"start: {start.format(**marks)}", *rules, ""]))


class _Writer:
    """The rules of a form: `one` and `several` calls, and how a function and its arguments are put."""

    def __init__(self, one: str, *, several: str | None, key: str | None) -> None:
        self.one, self.several, self._key = one, several, key

    def function(self, name: str, arguments: str, special_ids: Mapping[str, int]) -> str:
        if self._key is None:
            return f"{json.dumps(name)} {_mark('[ARGS]', special_ids)} {arguments}"
        head = json.dumps(f'{{"name": "{name}", "{self._key}": ')
        return f'{head} {arguments} "}}"'


_MARK_TEXTS: Final = {"begin": "<tool_call>", "end": "</tool_call>", "calls": "[TOOL_CALLS]"}
_HERMES_CALL: Final = r'{begin} "\n" call "\n" {end}'
_WRITERS: Final = {
    CallForm.HERMES: _Writer(_HERMES_CALL, several=rf'{_HERMES_CALL} ("\n" {_HERMES_CALL})*', key="arguments"),
    CallForm.LLAMA: _Writer("call", several=None, key="parameters"),
    CallForm.MISTRAL: _Writer('{calls} "[" call "]"', several='{calls} "[" call (", " call)* "]"', key="arguments"),
    CallForm.MISTRAL_NAMED: _Writer("{calls} call", several="({calls} call)+", key=None),
}


def _mark(text: str, special_ids: Mapping[str, int]) -> str:
    return f"<[{special_ids[text]}]>" if text in special_ids else json.dumps(text)


def _parameters(function: Mapping[str, Any]) -> str:
    """Write a function's schema, as a rule of its own so that its references stay right; without one, no arguments."""
    schema = function.get("parameters") or {"type": "object", "additionalProperties": False}
    return json.dumps({"x-guidance": {"whitespace_flexible": False}, **schema}, ensure_ascii=False)


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function: Mapping[str, Any] = tool["function"]
    return function


def for_template(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools as chat templates expect them: each with a description and parameters."""
    return [
        {"type": "function", "function": {"description": "", "parameters": {"type": "object"}, **_function(tool)}}
        for tool in tools
    ]
