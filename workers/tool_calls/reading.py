"""Reads the calls in an output, with one reader for each form."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from workers.tool_calls.forms import DEEPSEEK_CALL, DEEPSEEK_CALLS, DEEPSEEK_SEPARATOR, CallForm, MalformedCall
from workers.tool_calls.json_texts import first_json, whole_json
from workers.tool_calls.pythonic_calls import read_pythonic
from workers.tool_calls.xml_calls import read_xml

Written = tuple[str, list[Any]]
"""The text beside the calls, and each call as an object with `name` and `arguments` or `parameters`, unchecked."""


def read_calls(form: CallForm, text: str, schemas: Mapping[str, Mapping[str, Any]]) -> Written:
    """Return the text and the calls; in most forms a call may be any JSON. Raise MalformedCall.

    `schemas` are the functions' parameters by name; they give types to the values of the one form that writes none.
    """
    if form is CallForm.XML:
        return read_xml(text, schemas)
    return _READERS[form](text)


_HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_PHI = re.compile(r"<\|tool_call\|>(.*?)(?:<\|/tool_call\|>|\Z)", re.DOTALL)


def _read_hermes(text: str) -> Written:
    return _HERMES.sub("", text), [whole_json(call) for call in _HERMES.findall(text)]


def _read_phi(text: str) -> Written:
    """Read one call, or a list of calls, in each pair of marks."""
    values = [whole_json(one) for one in _PHI.findall(text)]
    calls = [call for one in values for call in (one if isinstance(one, list) else [one])]
    return _PHI.sub("", text), calls


def _read_llama(text: str) -> Written:
    rest = text.strip().removeprefix("<|python_tag|>").strip()
    calls = []
    while rest:
        call, rest = first_json(rest)
        calls.append(call)
        rest = rest.strip().removeprefix(";").strip()
    return "", calls


def _read_list(mark: str) -> Callable[[str], Written]:
    """Return a reader of one JSON list of calls after a mark."""

    def read(text: str) -> Written:
        content, separator, rest = text.partition(mark)
        calls = whole_json(rest) if separator else []
        if not isinstance(calls, list):
            raise MalformedCall
        return content, calls

    return read


def _read_mistral_named(text: str) -> Written:
    content, *parts = text.split("[TOOL_CALLS]")
    calls = []
    for part in parts:
        name, _, arguments = part.partition("[ARGS]")
        calls.append({"name": name.partition("[CALL_ID]")[0].strip(), "arguments": whole_json(arguments)})
    return content, calls


def _read_deepseek(text: str) -> Written:
    content, parts = _deepseek_parts(text)
    calls = []
    for kind, rest in parts:
        name, _, block = rest.partition("\n")
        block = block.strip()
        if kind != "function" or not block.startswith("```json"):
            raise MalformedCall
        arguments = block.removeprefix("```json").removesuffix("```")
        calls.append({"name": name.strip(), "arguments": whole_json(arguments)})
    return content, calls


def _read_deepseek_named(text: str) -> Written:
    content, parts = _deepseek_parts(text)
    return content, [{"name": name, "arguments": whole_json(arguments)} for name, arguments in parts]


def _deepseek_parts(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the text beside the calls, and the parts of each call before and after its separator."""
    before, mark, rest = text.partition(DEEPSEEK_CALLS[0])
    section, _, after = rest.partition(DEEPSEEK_CALLS[1])
    gap, *written = section.split(DEEPSEEK_CALL[0])
    parts = []
    for one in written:
        call, _, behind = one.partition(DEEPSEEK_CALL[1])
        head, separator, arguments = call.partition(DEEPSEEK_SEPARATOR)
        gap += behind
        if not separator:
            raise MalformedCall
        parts.append((head.strip(), arguments))
    if gap.strip() or (mark and not parts):
        raise MalformedCall
    return before + after, parts


_READERS: Mapping[CallForm, Callable[[str], Written]] = {
    CallForm.HERMES: _read_hermes,
    CallForm.LLAMA: _read_llama,
    CallForm.PYTHONIC: lambda text: ("", read_pythonic(text)),
    CallForm.MISTRAL: _read_list("[TOOL_CALLS]"),
    CallForm.MISTRAL_NAMED: _read_mistral_named,
    CallForm.GRANITE: _read_list("<|tool_call|>"),
    CallForm.PHI: _read_phi,
    CallForm.FUNCTOOLS: _read_list("functools"),
    CallForm.DEEPSEEK: _read_deepseek,
    CallForm.DEEPSEEK_NAMED: _read_deepseek_named,
}
