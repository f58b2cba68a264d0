"""Grammars that constrain an output to tool calls, one for each form."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import InvalidRequestError
from engine.grammars.grammar import kept_schema
from engine.structured import MAX_LEVELS, StructuredOutput, num_levels_of
from jobs.lines.body_checks import BodyError
from jobs.lines.body_tools import Choice, ToolUse
from workers.tool_calls.argument_schemas import json_rule
from workers.tool_calls.forms import DEEPSEEK_CALL, DEEPSEEK_CALLS, DEEPSEEK_SEPARATOR, CallForm
from workers.tool_calls.pythonic_calls import pythonic_arguments
from workers.tool_calls.xml_calls import xml_arguments


def constraint(form: CallForm, tool_use: ToolUse, special_ids: Mapping[str, int]) -> StructuredOutput | None:
    """Return the grammar of an output that calls tools; None if none is needed.

    If a call is required, the output is calls and nothing else. If the model may choose and a function is `strict`, it
    is text, or text with calls at its end. `special_ids` are the tokens that the tokenizer never produces from plain
    text: a mark that is one of them is written as that token. Raise BodyError if a function's parameters cannot be
    enforced in this form.
    """
    if tool_use.choice is Choice.REQUIRED:
        start = _required_start
    elif any(function_of(tool).get("strict") for tool in tool_use.callable):
        start = _chosen_start
    else:
        return None
    layout = _LAYOUTS[form]
    rules = [*start(layout, special_ids), *_calls(layout, tool_use, special_ids)]
    for index, tool in enumerate(tool_use.callable):
        function = function_of(tool)
        _check_levels(function)
        function = _with_kept_parameters(function, one_of_as_any_of=tool_use.one_of_as_any_of)
        before = tuple(part.replace(_NAME, function["name"]) for part in layout.own)
        rules.append(f"f{index}: {_written(before, special_ids)} a{index} {_written(layout.after, special_ids)}")
        rules += layout.arguments(f"a{index}", function)
    return StructuredOutput(grammar="\n".join([*rules, ""]))


def _check_levels(function: Mapping[str, Any]) -> None:
    num_levels = num_levels_of(function.get("parameters") or {})
    if num_levels > MAX_LEVELS:
        message = (
            f"the parameters of the function {function['name']} are nested {num_levels} levels deep; {MAX_LEVELS} are "
            "allowed. Make them flatter"
        )
        raise BodyError("tools", message, code="unsupported_structure")


def _with_kept_parameters(function: Mapping[str, Any], *, one_of_as_any_of: bool) -> Mapping[str, Any]:
    if not isinstance(parameters := function.get("parameters"), Mapping):
        return function
    try:
        kept = kept_schema(json.dumps(parameters, ensure_ascii=False), one_of_as_any_of=one_of_as_any_of)
    except InvalidRequestError as error:
        raise BodyError("tools", str(error), code="unsupported_structure") from error
    return {**function, "parameters": kept}


def _required_start(layout: _Layout, special_ids: Mapping[str, int]) -> list[str]:
    return [f"start: {_written(layout.mark, special_ids)} calls"]


def _chosen_start(layout: _Layout, special_ids: Mapping[str, int]) -> list[str]:
    """Return the rules of an output of text, of calls, or, if marks tell them apart, of text and then calls."""
    mark = _written(layout.mark, special_ids)
    if layout.opening is not None:  # an output that begins like a call is one
        return [f"start: TEXT | {mark} calls", rf"TEXT: /(\s*[^\s\{layout.opening}](.|\n)*)?/"]
    others = sorted({*special_ids.values()} - {special_ids.get(part) for part in layout.mark})
    tokens = f" | <[{','.join(map(str, others))}]>" if others else ""  # such as those of thinking, which are not text
    mark_tokens = f" | {mark}" if layout.mark[0] in special_ids else ""
    return [
        "start: free (mark calls)?",
        f"free: (TEXT{tokens})*",
        r"TEXT: /(.|\n)*/",
        f"mark: written_mark{mark_tokens}",
        f"written_mark[lazy]: TEXT {json.dumps(''.join(layout.mark))}",
    ]


def _calls(layout: _Layout, tool_use: ToolUse, special_ids: Mapping[str, int]) -> list[str]:
    """Return the rules of all calls after the first mark."""
    rest = ""
    if tool_use.is_parallel and layout.between is not None:
        rest = f"({_written((*layout.between, *layout.again), special_ids)} call)*"
    functions = " | ".join(f"f{index}" for index in range(len(tool_use.callable)))
    return [f"calls: call {rest} {_written(layout.end, special_ids)}", f"call: {functions}"]


def function_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function: Mapping[str, Any] = tool["function"]
    return function


def _written(parts: tuple[str, ...], special_ids: Mapping[str, int]) -> str:
    return " ".join(_literal(part, special_ids) for part in parts)


def _literal(text: str, special_ids: Mapping[str, int]) -> str:
    return f"<[{special_ids[text]}]>" if text in special_ids else json.dumps(text)


def _json_arguments(rule: str, function: Mapping[str, Any]) -> list[str]:
    """Return a function's schema as a separate rule, so that its references stay valid; no schema, no arguments."""
    return [f"{rule}: {json_rule(function.get('parameters') or {'type': 'object', 'additionalProperties': False})}"]


_NAME = "{name}"
_JSON = '{"name": "{name}", "arguments": '


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """The text around the arguments of calls. Marks that may be single tokens are separate parts."""

    before: tuple[str, ...]
    """Before the arguments of each call."""
    after: tuple[str, ...]
    """After the arguments of each call."""
    begin: tuple[str, ...] = ()
    """Before all calls."""
    between: tuple[str, ...] | None = ()
    """Between two calls; None if only one call is possible."""
    end: tuple[str, ...] = ()
    """After all calls."""
    opening: str | None = None
    """The first character of calls, if no mark tells them from text."""
    arguments: Callable[[str, Mapping[str, Any]], list[str]] = _json_arguments

    @property
    def mark(self) -> tuple[str, ...]:
        """Return the mark of the first call: that of all calls, or else of each call."""
        return self.begin or self.again

    @property
    def again(self) -> tuple[str, ...]:
        """Return the mark of each single call."""
        return () if self.begin or self.opening else self.before[:1]

    @property
    def own(self) -> tuple[str, ...]:
        """Return the parts between a call's mark and its arguments."""
        return self.before[len(self.again) :]


def _json_list(*begin: str) -> _Layout:
    return _Layout(begin=(*begin, "["), before=(_JSON,), after=("}",), between=(", ",), end=("]",))


_LAYOUTS = {
    CallForm.HERMES: _Layout(before=("<tool_call>", "\n" + _JSON), after=("}\n", "</tool_call>"), between=("\n",)),
    CallForm.LLAMA: _Layout(before=('{"name": "{name}", "parameters": ',), after=("}",), between=None, opening="{"),
    CallForm.PYTHONIC: _Layout(
        begin=("[",),
        before=("{name}(",),
        after=(")",),
        between=(", ",),
        end=("]",),
        opening="[",
        arguments=pythonic_arguments,
    ),
    CallForm.MISTRAL: _json_list("[TOOL_CALLS]"),
    CallForm.MISTRAL_NAMED: _Layout(before=("[TOOL_CALLS]", _NAME, "[ARGS]"), after=()),
    CallForm.GRANITE: _json_list("<|tool_call|>"),
    CallForm.PHI: _Layout(before=("<|tool_call|>", _JSON), after=("}", "<|/tool_call|>")),
    CallForm.FUNCTOOLS: _json_list("functools"),
    CallForm.DEEPSEEK: _Layout(
        begin=DEEPSEEK_CALLS[:1],
        before=(DEEPSEEK_CALL[0], "function", DEEPSEEK_SEPARATOR, "{name}\n```json\n"),
        after=("\n```", DEEPSEEK_CALL[1]),
        between=("\n",),
        end=DEEPSEEK_CALLS[1:],
    ),
    CallForm.DEEPSEEK_NAMED: _Layout(
        begin=DEEPSEEK_CALLS[:1],
        before=(DEEPSEEK_CALL[0], _NAME, DEEPSEEK_SEPARATOR),
        after=DEEPSEEK_CALL[1:],
        end=DEEPSEEK_CALLS[1:],
    ),
    CallForm.XML: _Layout(
        before=("<tool_call>", "\n<function={name}>\n"),
        after=("</function>\n", "</tool_call>"),
        between=("\n",),
        arguments=xml_arguments,
    ),
}
